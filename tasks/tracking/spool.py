"""What a run has to tell MLflow, on disk: an append-only list that outlives servers and processes.

In ``tracking/`` of the run's folder:
    run.json       which run of MLflow it is for
    entries.jsonl  an entry a line, in the order in which they happened
    sent.json      how many of them MLflow has taken
    aside.jsonl    entries that MLflow did not take although it answers, and why

An entry has a key, unique in the run: what is redone after an interruption is not told twice.
Several processes may append; one at a time, who holds ``lock``, sends.
"""

import fcntl
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from threading import Lock
from typing import Any, BinaryIO, Final, Self

from digen_core.strict import Strict
from digen_core.transport.files import replace_text, try_lock

FOLDER: Final = "tracking"

Entry = dict[str, Any]
"""``key`` and ``kind``, and what the kind needs: see tasks/tracking/delivery.py."""


class RunOfSpool(Strict):
    """Which run of MLflow a spool is for."""

    uri: str
    experiment_id: str
    mlflow_run_id: str
    name: str


class _Sent(Strict):
    """How far a spool was sent."""

    num_entries: int = 0
    num_bytes: int = 0  # of entries.jsonl


class Spool:
    """The entries of one run's folder. Safe to use from several threads and processes."""

    def __init__(self, run_dir: Path, run: RunOfSpool) -> None:
        self.run_dir = run_dir
        self.folder = run_dir / FOLDER
        self.run = run
        self._entries = self.folder / "entries.jsonl"
        self._aside = self.folder / "aside.jsonl"
        self._adding = Lock()
        self._keys = {str(entry["key"]) for entry in self.read()}

    @classmethod
    def create(cls, run_dir: Path, run: RunOfSpool) -> Self:
        """Begin the spool of a run of MLflow in the run's folder."""
        (run_dir / FOLDER).mkdir(parents=True, exist_ok=True)
        replace_text(run_dir / FOLDER / "run.json", run.model_dump_json(indent=2))
        return cls(run_dir, run)

    @classmethod
    def open(cls, run_dir: Path) -> Self | None:
        """Return the spool of a run's folder, if it has one."""
        header = run_dir / FOLDER / "run.json"
        if not header.is_file():
            return None
        return cls(run_dir, RunOfSpool.model_validate_json(header.read_text()))

    def __contains__(self, key: str) -> bool:
        return key in self._keys

    def append(self, key: str, kind: str, **content: Any) -> bool:
        """Add an entry and return when it is on disk; whether it is new.

        Args:
            key: names the entry; nothing happens if the run has one of that name.
            kind: of the entry.
            **content: plain values.
        """
        line = json.dumps({"key": key, "kind": kind, **content}, allow_nan=False) + "\n"
        with self._adding:
            if key in self._keys:
                return False
            with self._entries.open("ab+") as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                file.truncate(_end_of_last_line(file))
                file.write(line.encode())
                file.flush()
                os.fsync(file.fileno())
            self._keys.add(key)
        return True

    def read(self) -> list[Entry]:
        """Return all entries."""
        return [entry for entry, _ in self._read_from(0)]

    def unsent(self) -> Iterator[tuple[Entry, int]]:
        """Yield what MLflow has not taken yet: each entry and its length in bytes."""
        return self._read_from(self._sent().num_bytes)

    @property
    def num_unsent(self) -> int:
        """Entries that MLflow has not taken yet."""
        return sum(1 for _ in self.unsent())

    def acknowledge(self, num_entries: int, num_bytes: int) -> None:
        """Note that MLflow has taken the next entries."""
        sent = self._sent()
        sent = _Sent(
            num_entries=sent.num_entries + num_entries, num_bytes=sent.num_bytes + num_bytes
        )
        replace_text(self.folder / "sent.json", sent.model_dump_json())

    def set_aside(self, entry: Entry, reason: str) -> None:
        """Keep an entry that MLflow does not take, so that the next ones can be sent."""
        with self._aside.open("a") as file:
            file.write(json.dumps({**entry, "reason": reason}) + "\n")

    def aside(self) -> list[Entry]:
        """Return the entries that were set aside."""
        if not self._aside.exists():
            return []
        return [json.loads(line) for line in self._aside.read_text().splitlines()]

    def keep_aside(self, entries: Sequence[Entry]) -> None:
        """Keep only some of the entries that were set aside."""
        replace_text(self._aside, "".join(json.dumps(entry) + "\n" for entry in entries))

    def sending(self) -> AbstractContextManager[bool]:
        """Yield whether the caller may send: nobody else does. A process that dies lets go."""
        return try_lock(self.folder / "lock")

    def _sent(self) -> _Sent:
        path = self.folder / "sent.json"
        return _Sent.model_validate_json(path.read_text()) if path.exists() else _Sent()

    def _read_from(self, offset: int) -> Iterator[tuple[Entry, int]]:
        if not self._entries.exists():
            return
        with self._entries.open("rb") as file:
            file.seek(offset)
            for line in file:
                if not line.endswith(b"\n"):
                    return  # it is being written, or its writer was killed
                yield json.loads(line), len(line)


def _end_of_last_line(file: BinaryIO) -> int:
    """Return where the last complete line ends: a process that was killed may leave half a one."""
    size = file.seek(0, os.SEEK_END)
    position = size
    while position:
        file.seek(position - 1)
        if file.read(1) == b"\n":
            return position
        position -= 1
    return 0
