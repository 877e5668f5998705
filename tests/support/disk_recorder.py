"""A record of what is on disk under a folder, after each change that processes make there.

Installed in a process, it stands around the calls of ``os`` that change names or sync. What other
code writes (Parquet, safetensors, SQLite) is seen at the next of these calls, of any process: the
content of a file counts only once it is synced, and Python syncs all of them.

| STORE/steps.jsonl     a line a step, in the order of all processes
| STORE/contents/HASH   of files, and of MLflow's database
| STORE/inodes/NUMBER   another name of each file that was seen: its number is not given again
"""

import fcntl
import functools
import json
import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from hashlib import sha1
from pathlib import Path
from stat import S_ISDIR
from threading import RLock
from typing import Any

NAMES = ("rename", "replace", "unlink", "remove", "mkdir", "rmdir", "link", "symlink")
SYNCS = ("fsync", "fdatasync")
COARSE_SECONDS = 0.1  # a file that changed in this time may change again under the same mtime


Entry = tuple[str, str | None]
"""A thing, and the hash of its content; None: a folder."""


@dataclass(frozen=True)
class Step:
    """What is there after a call."""

    tree: dict[str, Entry]  # by path in the folder
    synced: str | None = None  # a thing
    promised: int | None = None  # a version that the run was told is on disk
    database: str | None = None  # hash of MLflow's


class Recorder:
    """Of one process; all of them write into one store."""

    def __init__(self, root: Path, store: Path, database: str | None = None) -> None:
        """Record the folders of runs (``test-...``) in a folder, and a database there."""
        self.root, self.store = root.resolve(), store
        self._database = self.root / database if database else None
        self._lock = RLock()
        self._known: dict[str, tuple[Any, ...]] = {}
        self._before: tuple[Any, ...] = ()
        self._link = os.link
        for name in ("contents", "inodes"):
            (store / name).mkdir(parents=True, exist_ok=True)

    def install(self) -> dict[str, Callable[..., Any]]:
        """Stand around the calls, and return what was there."""
        originals = {name: getattr(os, name) for name in (*NAMES, *SYNCS)}
        for name, call in originals.items():
            setattr(os, name, self._around(name, call))
        return originals

    def promise(self, version: int) -> None:
        """Note that the run was told that a checkpoint is on disk."""
        with self._alone():
            self._note(promised=version)

    def _around(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(call)
        def recorded(target: Any, *others: Any, **settings: Any) -> Any:
            if not self._concerns(target, settings):
                return call(target, *others, **settings)
            with self._alone():
                self._note()  # what others have written since
                synced = _thing(os.stat(target)) if name in SYNCS else None
                try:
                    return call(target, *others, **settings)
                finally:
                    self._note(synced=synced)

        return recorded

    def _concerns(self, target: Any, settings: dict[str, Any]) -> bool:
        descriptor = target if isinstance(target, int) else settings.get("dir_fd")
        if descriptor is None:
            descriptor = settings.get("src_dir_fd")
        if descriptor is not None:
            with suppress(OSError):
                return Path(os.readlink(f"/proc/self/fd/{descriptor}")).is_relative_to(self.root)
            return False
        return os.path.abspath(os.fsdecode(target)).startswith(f"{self.root}/")

    @contextmanager
    def _alone(self) -> Iterator[None]:
        with self._lock, (self.store / "lock").open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def _note(self, synced: str | None = None, promised: int | None = None) -> None:
        tree = {"": (_thing(self.root.stat()), None), **dict(self._entries(self.root, ""))}
        step = {"tree": tree, "synced": synced, "promised": promised}
        if self._database and self._database.exists():
            step["database"] = self._kept_database()
        with (self.store / "steps.jsonl").open("a") as file:
            if (tree, file.tell()) == self._before and synced is None and promised is None:
                return
            file.write(json.dumps(step) + "\n")
            self._before = tree, file.tell()

    def _entries(self, folder: Path, prefix: str) -> Iterator[tuple[str, Entry]]:
        with suppress(FileNotFoundError):
            for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
                if not prefix and not entry.name.startswith("test-"):
                    continue
                path = prefix + entry.name
                with suppress(FileNotFoundError):
                    if entry.is_dir(follow_symlinks=False):
                        yield path, (_thing(entry.stat()), None)
                        yield from self._entries(Path(entry.path), f"{path}/")
                    else:
                        yield path, (_thing(entry.stat()), self._hash_of(Path(entry.path)))

    def _hash_of(self, path: Path) -> str:
        stat = path.stat()
        key = (stat.st_ino, stat.st_size, stat.st_mtime_ns)
        found: str
        known, found, was_coarse = self._known.get(str(path), (None, "", True))
        if known is None or known[0] != stat.st_ino:
            with suppress(FileExistsError):
                self._link(path, self.store / "inodes" / str(stat.st_ino))
        if known != key or was_coarse:
            coarse = time.time() - stat.st_mtime < COARSE_SECONDS
            found = self._kept(path.read_bytes())
            self._known[str(path)] = (key, found, coarse)
        return found

    def _kept_database(self) -> str:
        assert self._database is not None
        stat = self._database.stat()
        found: str
        known, found = self._known.get("database", (None, ""))[:2]
        if known != (stat.st_size, stat.st_mtime_ns):
            with sqlite3.connect(f"file:{self._database}?mode=ro", uri=True) as connection:
                found = self._kept(connection.serialize())
            connection.close()
            self._known["database"] = ((stat.st_size, stat.st_mtime_ns), found)
        return found

    def _kept(self, content: bytes) -> str:
        name = sha1(content).hexdigest()
        path = self.store / "contents" / name
        if not path.exists():
            path.write_bytes(content)
        return name


def _thing(stat: os.stat_result) -> str:
    """Return the name of a file or folder, whatever its path is."""
    return f"{'folder' if S_ISDIR(stat.st_mode) else 'file'} {stat.st_ino}"


def record_here(root: str, store: str) -> None:
    """Record what this process, a worker, does from now on."""
    Recorder(Path(root), Path(store)).install()


@contextmanager
def recording(root: Path, store: Path) -> Iterator[Recorder]:
    """Record what this process does while the body runs."""
    recorder = Recorder(root, store, "mlflow.db")
    originals = recorder.install()
    try:
        yield recorder
    finally:
        for name, call in originals.items():
            setattr(os, name, call)


def steps_in(store: Path) -> list[Step]:
    """Return what was recorded."""
    with (store / "steps.jsonl").open() as file:
        return [Step(**json.loads(line)) for line in file]
