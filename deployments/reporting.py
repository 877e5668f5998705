"""``digen`` in a process that reports each step of its run, and waits for an answer: for stories.

    python -m deployments.reporting FD ARGUMENTS...

FD is one end of a pair of sockets. A report is a line of JSON: what the run says, or an event or
instruction of its controller with the lives of the run so far, of which the last one goes on. The
answer is "go", or "who": then a line follows with the processes of the run's workers, and the
answer to that.
"""

import json
import socket
import sys
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import Any

from deployments.chaos.ledger import Ledger
from deployments.cli import run
from deployments.local import apply_settings
from deployments.processes import WorkerProcesses
from deployments.stopping import install
from digen_core.checkpoints.manifest import (
    CHECKPOINTS_OF_RUN,
    DamagedError,
    checkpoints_in,
    read_manifest,
)
from digen_core.config.load import config_of_run
from digen_core.control import protocol as p
from digen_core.records import IterationRecord
from flows.runtime.observers import Observer, listening, watching


class Reporter(Observer):
    """Tells whoever plays the story what the run does."""

    def __init__(self, connection: socket.socket) -> None:
        self._lines = connection.makefile("rw", encoding="utf-8")
        self._lock = Lock()
        self._ledger = Ledger()
        self._run_dir = Path()
        self._num_updates = 1  # of an iteration
        self._workers = WorkerProcesses()

    def hear(self, what: p.Event | p.Instruction) -> None:
        """Report an event or an instruction."""
        self._ledger.add(what)
        lives = [life.model_dump() for life in self._ledger.lives]
        place = {"iteration": iteration_of(what, self._num_updates), "device": device_of(what)}
        self._report({"heard": type(what).__name__, **place, "lives": lives})

    def on_phase(self, text: str) -> None:
        """Report what begins."""
        self._report({"phase": text})

    def on_warning(self, text: str) -> None:
        """Report what is wrong."""
        self._report({"warning": text})

    def on_open(self, run_dir: Path) -> None:
        """Note which run it is."""
        self._run_dir = run_dir
        self._num_updates = config_of_run(run_dir).train.updates_per_iteration

    def on_iteration(self, record: IterationRecord) -> None:
        """Note which checkpoints there are: that of an iteration comes before this."""
        self._ledger.kept = kept_in(self._run_dir)

    def _report(self, line: dict[str, Any]) -> None:
        with self._lock:
            answer = self._say(line)
            if answer == "who":
                self._say(self._workers.of(self._run_dir.name))

    def _say(self, line: dict[str, Any]) -> str:
        try:
            self._lines.write(json.dumps(line) + "\n")
            self._lines.flush()
            return self._lines.readline().strip()
        except OSError:  # nobody listens any more
            return "go"


def kept_in(run_dir: Path) -> tuple[int, ...]:
    """Return how many iterations were over in each checkpoint of a run, the oldest first."""
    numbers = []
    for checkpoint in checkpoints_in(run_dir / CHECKPOINTS_OF_RUN):
        with suppress(DamagedError):  # it is being removed
            numbers.append(read_manifest(checkpoint).num_iterations)
    return tuple(numbers)


def iteration_of(what: p.Event | p.Instruction, num_updates: int = 1) -> int:
    """Return the iteration that an event or instruction is of; -1 if it is of none.

    Args:
        what: that a run heard or said.
        num_updates: of an iteration, of which none was skipped.
    """
    for name in ("batch", "fragment", "pack"):
        what = getattr(what, name, what)
    if isinstance(what, p.Stepped | p.StateCopied | p.VersionLoaded | p.CopyState | p.Push):
        return (what.version - 1) // num_updates
    return int(getattr(what, "iteration", -1))


def device_of(what: p.Event | p.Instruction) -> str:
    """Return the device that an event or instruction names; empty if none."""
    device = getattr(what, "device", "")
    return device if isinstance(device, str) else device.name


def main() -> None:
    """Run digen's command line, and report."""
    install()
    apply_settings()
    with socket.socket(fileno=int(sys.argv[1])) as connection:
        connection.set_inheritable(False)
        reporter = Reporter(connection)
        with watching(reporter), listening(reporter.hear):
            code = run(sys.argv[2:])
    sys.exit(code)


if __name__ == "__main__":
    main()
