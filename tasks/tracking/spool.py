"""A durable outbox of calls to MLflow: an append-only list that outlives servers and processes.

In ``tracking/`` of the run's folder:
    run.json       which run of MLflow it is for
    entries.jsonl  an entry a line, in the order in which they happened
    sent.json      how many of them MLflow has taken
    aside.jsonl    entries that MLflow did not take although it answers, and why

An entry has a key, unique in the run: what is redone after an interruption is not sent twice.
Several processes may append; one at a time, who holds ``lock``, sends. What is damaged is left out,
with a warning: a run can continue without it.
"""

import json
import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from threading import Lock
from typing import Any, Self

from pydantic import ValidationError

from digen_core.inputs.reading import reason_of
from digen_core.strict import Strict
from digen_core.transport.entries import ENTRIES_OF_RUN, FOLDER, Entry, entries_in, read_entries
from digen_core.transport.files import append_line, appending, make_folder, replace_text, try_lock

logger = logging.getLogger(__name__)


class RunOfSpool(Strict):
    """Which run of MLflow a spool is for."""

    uri: str
    experiment_id: str
    mlflow_run_id: str
    name: str


def iteration_key(step: int) -> str:
    """Return the key of the metrics of an iteration; steps count from 1."""
    return f"iteration {step:04d}"


def evaluation_key(tag: str) -> str:
    """Return the key of an evaluation."""
    return f"evaluation {tag}"


class _Sent(Strict):
    """How far a spool was sent."""

    num_entries: int = 0
    num_bytes: int = 0  # of entries.jsonl


class Spool:
    """The entries of one run's folder. Safe to use from several threads and processes."""

    def __init__(self, run_dir: Path, run: RunOfSpool, logged: Iterable[str] = ()) -> None:
        self.run_dir = run_dir
        self.folder = run_dir / FOLDER
        self.run = run
        self._entries = run_dir / ENTRIES_OF_RUN
        self._aside = self.folder / "aside.jsonl"
        self._adding = Lock()
        #: The step of each entry; None: it has none, or MLflow alone has the entry.
        self._steps: dict[str, int | None] = dict.fromkeys(logged)
        self._num_bytes = 0  # of the entries that are among them
        #: The last entry of each model's folder and of each evaluation's file.
        self._latest: dict[str, str] = {}
        self._take_in(entries_in(self._entries))

    @classmethod
    def create(cls, run_dir: Path, run: RunOfSpool, logged: Iterable[str] = ()) -> Self:
        """Begin the spool of a run of MLflow in the run's folder.

        Args:
            run_dir: folder of the run.
            run: of MLflow.
            logged: keys of what MLflow has, beside those of the folder's entries.
        """
        header, text = run_dir / FOLDER / "run.json", run.model_dump_json(indent=2)
        make_folder(header.parent)
        if not header.is_file() or header.read_bytes() != text.encode():  # it tells when it began
            replace_text(header, text)
        return cls(run_dir, run, logged)

    @classmethod
    def restart(cls, run_dir: Path, run: RunOfSpool) -> Self:
        """Have another run of MLflow told all entries of a folder, from the first."""
        for name in ("sent.json", "aside.jsonl"):
            (run_dir / FOLDER / name).unlink(missing_ok=True)
        return cls.create(run_dir, run)

    @classmethod
    def open(cls, run_dir: Path) -> Self | None:
        """Return the spool of a run's folder, if it has one that says for which run it is."""
        header = run_dir / FOLDER / "run.json"
        if not header.is_file():
            return None
        try:
            return cls(run_dir, RunOfSpool.model_validate_json(header.read_bytes()))
        except ValidationError as error:
            logger.warning("%s is damaged and left out: %s", header, reason_of(error))
            return None

    def __contains__(self, key: str) -> bool:
        return key in self._steps

    def step_of(self, key: str) -> int | None:
        """Return the step of an entry; None: it has none, or MLflow alone has the entry."""
        return self._steps.get(key)

    def is_replaced(self, entry: Entry) -> bool:
        """Return whether an entry's model, or file of an evaluation, has become a later one's.

        As those of the end of a run that went on, and ended again.
        """
        with self._adding:
            self._take_in(entries_in(self._entries, self._num_bytes, warns=False))
        key = str(entry["key"])
        return self._latest.get(str(entry.get("path")), key) != key

    def append(self, key: str, kind: str, **content: Any) -> bool:
        """Add an entry and return when it is on disk; whether it is new.

        Args:
            key: names the entry; nothing happens if the run has one of that name.
            kind: of the entry.
            **content: plain values.
        """
        line = json.dumps({"key": key, "kind": kind, **content}, allow_nan=False)
        with self._adding, appending(self._entries) as append:
            self._take_in(entries_in(self._entries, self._num_bytes, warns=False))
            if key in self._steps:
                return False
            append(line)
            self._steps[key] = content.get("step")
        return True

    def _take_in(self, added: Iterable[tuple[Entry, int]]) -> None:
        """Note entries that this process, or another one, has added."""
        for entry, length in added:
            self._steps[str(entry["key"])] = entry.get("step")
            if entry["kind"] == "model" or (entry["kind"] == "file" and "evaluation" in entry):
                self._latest[str(entry.get("path"))] = entry["key"]
            self._num_bytes += length

    def read(self) -> list[Entry]:
        """Return all entries."""
        return read_entries(self.run_dir)

    def read_from(self, num_bytes: int) -> Iterator[tuple[Entry, int]]:
        """Yield the entries after some bytes, each with its length in bytes."""
        return entries_in(self._entries, num_bytes)

    def unsent(self) -> Iterator[tuple[Entry, int]]:
        """Yield what MLflow has not taken yet: each entry and its length in bytes."""
        return self.read_from(self._sent().num_bytes)

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
        append_line(self._aside, json.dumps({**entry, "reason": reason}))

    def aside(self) -> list[Entry]:
        """Return the entries that were set aside."""
        if not self._aside.exists():
            return []
        return [entry for entry, _ in entries_in(self._aside)]

    def keep_aside(self, entries: Sequence[Entry]) -> None:
        """Keep only some of the entries that were set aside."""
        replace_text(self._aside, "".join(json.dumps(entry) + "\n" for entry in entries))

    def sending(self) -> AbstractContextManager[bool]:
        """Yield whether the caller may send: nobody else does. A process that dies lets go."""
        return try_lock(self.folder / "lock")

    def _sent(self) -> _Sent:
        """Return how far it was sent; from the start if the file does not say where a line ends."""
        path = self.folder / "sent.json"
        if not path.exists():
            return _Sent()
        try:
            sent = _Sent.model_validate_json(path.read_bytes())
            if _is_end_of_line(self._entries, sent.num_bytes):
                return sent
        except ValidationError:
            pass
        logger.warning("%s is damaged: MLflow is told all again", path)
        return _Sent()


def _is_end_of_line(path: Path, position: int) -> bool:
    if position <= 0:
        return position == 0
    if not path.exists() or path.stat().st_size < position:
        return False
    with path.open("rb") as file:
        file.seek(position - 1)
        return file.read(1) == b"\n"
