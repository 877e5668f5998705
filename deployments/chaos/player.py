"""One story, played in namespaces of its own: the run, its faults, and starting it again.

    python -m deployments.chaos.player ORDER

ORDER is a file of JSON, an `Order`; what came of it, an `Outcome`, is written beside it. A run that
ended with an error is started again with ``--resume auto`` when nothing lasts any more that was
done to it: a person would wait for the disk, a restart policy would try until it can be written.
"""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from threading import Timer
from time import monotonic, sleep
from typing import Any, Final, TextIO

import psutil

from deployments.chaos import namespaces
from deployments.chaos.faults import Faults, send
from deployments.chaos.ledger import Life
from deployments.chaos.outcome import Attempt, Order, Outcome
from deployments.chaos.services import Services
from deployments.chaos.story import FLOW, ITS_DEVICE, PHASES, POINTS, PREFECT, Fault, Moment
from deployments.processes import prefect_server_of
from digen_core import PYTHON
from digen_core.config.load import CONFIG_OF_RUN

OUTCOME: Final = "outcome.json"
OUTPUT: Final = "output.txt"
RUNS: Final = "runs"
KEPT: Final = "kept"
"""In a story's folder: what its runs left, if they had a disk of their own."""
MOST_ATTEMPTS: Final = 5
WRONG_INPUT: Final = 2
"""Exit code of a command that nobody needs to start again."""
SYNC: Final = "'digen sync "
"""What a run says that MLflow did not take everything of."""
TOKEN: Final = "DIGEN_CHAOS"
"""Variable of the environment by which the processes of a story are known."""
_LEFT_SECONDS: Final = 60.0
"""After which a process that is still there when its run has ended counts as left over."""


class Player:
    """Plays a story in a folder."""

    def __init__(self, order: Order, folder: Path) -> None:
        self._order = order
        self._folder = folder
        self._runs_dir = folder / RUNS
        self._faults = Faults(self._runs_dir)
        self._services = Services(order.services, order.config, folder)
        self._waiting = list(order.story.faults)
        self._reached: Counter[tuple[str, int]] = Counter()
        self._timers: list[Timer] = []
        self._lives: list[Life] = []  # of this attempt
        self._is_late = False
        self._done: list[str] = []
        self._warnings: list[str] = []

    def play(self) -> Outcome:
        """Play the story to its end."""
        started, attempts = monotonic(), list[Attempt]()
        while len(attempts) < MOST_ATTEMPTS:
            attempt = self._attempt()
            attempts.append(attempt)
            self._faults.settle()
            self._services.settle()
            if attempt.code in (0, WRONG_INPUT) or attempt.is_late:
                break
        for timer in self._timers:
            timer.cancel()
        self._faults.close()
        if attempts[-1].asks_to_sync:
            self._sync()
        self._services.close()
        return Outcome(
            story=self._order.story,
            seconds=monotonic() - started,
            attempts=tuple(attempts),
            done=tuple(self._done),
            warnings=tuple(self._warnings),
        )

    # --- a run from its start to its end ------------------------------------------------------

    def _attempt(self) -> Attempt:
        started, self._lives = monotonic(), []
        with (self._folder / OUTPUT).open("a", encoding="utf-8") as output:
            begun = output.tell()
            code = self._run(output)
        left = self._left_over()
        text = (self._folder / OUTPUT).read_bytes()[begun:].decode(errors="replace")
        return Attempt(
            code=code,
            seconds=monotonic() - started,
            last_line=next((line for line in reversed(text.splitlines()) if line.strip()), ""),
            asks_to_sync=SYNC in text,
            has_traceback="Traceback (most recent call last)" in text,
            left_over=tuple(left),
            is_late=self._is_late,
            lives=tuple(self._lives),
        )

    def _run(self, output: TextIO) -> int:
        """Run the command to its end, hear what it says, and return its exit code."""
        ours, theirs = socket.socketpair()
        module = ("-m", "deployments.reporting", str(theirs.fileno()), "train")
        where = ("--tracking.runs-dir", str(self._runs_dir), "--resume", "auto")
        arguments = (*self._order.arguments, *self._services.arguments, *where)
        with ours:
            victim = subprocess.Popen(
                [*PYTHON, *module, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                pass_fds=[theirs.fileno()],
                env=self._environment,
            )
            theirs.close()
            limit = Timer(self._order.limit_seconds, self._give_up)
            limit.start()
            self._listen(ours, victim.pid)
            code = victim.wait()
            limit.cancel()
        return code

    @property
    def _environment(self) -> dict[str, str]:
        own = {TOKEN: str(self._folder), "PREFECT_HOME": str(self._folder / "prefect")}
        return {**os.environ, **self._services.environment, **own}

    def _sync(self) -> None:
        """Have sent what MLflow did not take while the run was there, as the run said."""
        command = [*PYTHON, "-c", "from deployments.cli import main; main()", "sync"]
        folders = [str(config.parent) for config in self._runs_dir.glob(f"*/{CONFIG_OF_RUN}")]
        output = self._folder / OUTPUT
        with output.open("a", encoding="utf-8") as file:
            subprocess.run(
                [*command, *folders],
                stdout=file,
                stderr=subprocess.STDOUT,
                env=self._environment,
                check=False,
            )
        self._warnings.append(output.read_text(encoding="utf-8").splitlines()[-1])

    def _give_up(self) -> None:
        self._is_late = True
        send([process.pid for process in self._processes()], signal.SIGKILL)

    def _processes(self) -> list[psutil.Process]:
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                is_own = process.environ().get(TOKEN) == str(self._folder)
                if is_own and process.status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD):
                    found.append(process)
        return found

    def _left_over(self) -> list[str]:
        """Wait for all processes of the run to end; end and return those that do not."""
        deadline = monotonic() + _LEFT_SECONDS
        while (left := self._processes()) and monotonic() < deadline:
            sleep(0.2)
        texts = []
        for process in left:
            with suppress(psutil.Error):
                texts.append(" ".join(process.cmdline())[:120])
        send([process.pid for process in left], signal.SIGKILL)
        return texts

    # --- what the run says --------------------------------------------------------------------

    def _listen(self, connection: socket.socket, victim: int) -> None:
        with connection.makefile("rw", encoding="utf-8") as lines:
            try:
                for line in lines:
                    self._hear(json.loads(line), lines, victim)
                    _answer(lines, "go")
            except (OSError, ValueError):  # it was killed in mid-sentence
                return

    def _hear(self, said: dict[str, Any], lines: TextIO, victim: int) -> None:
        if "warning" in said:
            self._warnings.append(said["warning"])
        if "heard" in said:
            self._lives = [Life.model_validate(life) for life in said["lives"]]
        due = [fault for fault in self._waiting if self._is_now(fault.moment, said)]
        self._reached.update(_points_of(said))
        if not due:
            return
        _answer(lines, "who")
        workers = {name: [pid] for name, pid in json.loads(lines.readline()).items()}
        pids = {**workers, FLOW: [victim], **self._services.pids}
        if (server := prefect_server_of(victim)) is not None:
            pids[PREFECT] = [server]
        for fault in due:
            self._waiting.remove(fault)
            self._strike(_aimed(fault, said.get("device", "")), pids)

    def _is_now(self, moment: Moment, said: dict[str, Any]) -> bool:
        """Say whether a moment comes with this, before it is counted."""
        points = _points_of(said)
        at = (moment.point, moment.iteration)
        return at in points and self._reached[at] + 1 == moment.count

    def _strike(self, fault: Fault, pids: dict[str, list[int]]) -> None:
        if fault.delay:
            timer = Timer(fault.delay, self._do, (fault, pids))
            timer.start()
            self._timers.append(timer)
        else:
            self._do(fault, pids)

    def _do(self, fault: Fault, pids: dict[str, list[int]]) -> None:
        struck = self._faults.do(fault, pids)
        self._done.append(f"{fault}: {' and '.join(struck) or 'nobody was there'}")


def _points_of(said: dict[str, Any]) -> list[tuple[str, int]]:
    """Return the points that are reached with what a run says."""
    if "phase" in said:
        return [(point, -1) for point, text in PHASES.items() if said["phase"].startswith(text)]
    heard, iteration = said.get("heard"), said.get("iteration", -1)
    return [(point, iteration) for point, name in POINTS.items() if name == heard]


def _aimed(fault: Fault, device: str) -> Fault:
    """Return a fault whose targets have names."""
    targets = tuple(device if name == ITS_DEVICE else name for name in fault.targets)
    return replace(fault, targets=targets)


def _answer(lines: TextIO, word: str) -> None:
    lines.write(word + "\n")
    lines.flush()


def main(arguments: Sequence[str]) -> None:
    """Play the story of an order."""
    path = Path(arguments[0])
    order = Order.model_validate_json(path.read_text(encoding="utf-8"))
    folder = path.parent
    runs_dir = folder / RUNS
    runs_dir.mkdir()
    if order.is_isolated:
        namespaces.prepare_network()
        namespaces.mount_disk(runs_dir)
    outcome = Player(order, folder).play()
    if order.is_isolated:  # the disk goes with the namespace
        shutil.copytree(runs_dir, folder / KEPT)
    (folder / OUTCOME).write_text(outcome.model_dump_json(indent=2), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
