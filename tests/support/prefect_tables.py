"""Databases of Prefect servers that hold the tables already, whose making takes seconds."""

import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import mkdtemp
from unittest.mock import patch

import prefect

IN_HOME = "prefect.db"
"""The database in the folder that PREFECT_HOME names."""

IN_HARNESS = "prefect-test.db"


class Tables:
    """A database as a server left it when it had just started, kept from one pytest to the next.

    Every server still looks whether its tables are those of its version, and makes what is missing.
    """

    def __init__(self, folder: Path) -> None:
        self._kept = folder / f"prefect-{prefect.__version__}.db"

    def put(self, database: Path) -> None:
        """Lay the tables where a server will look for its database, if they are known."""
        database.parent.mkdir(parents=True, exist_ok=True)
        if self._kept.exists():
            shutil.copyfile(self._kept, database)

    def keep(self, database: Path) -> None:
        """Remember the database of a server that has just started, which may go on writing."""
        if self._kept.exists():
            return
        part = Path(mkdtemp(dir=self._kept.parent)) / IN_HOME
        with closing(sqlite3.connect(database)) as own, closing(sqlite3.connect(part)) as copy:
            own.backup(copy)
        part.replace(self._kept)  # whole, whichever process of tests is first
        part.parent.rmdir()

    @contextmanager
    def in_harness(self) -> Iterator[None]:
        """Have Prefect's harness for tests, entered meanwhile, begin with them."""
        databases: list[Path] = []

        def folder() -> str:
            made = mkdtemp()
            databases.append(Path(made) / IN_HARNESS)
            self.put(databases[-1])
            return made

        with patch("prefect.testing.utilities.mkdtemp", folder):
            yield
        for database in databases:
            self.keep(database)
