"""Faults: what is done to processes, links and disks, and how it is undone."""

import json
import os
import shutil
import signal
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from functools import partial
from itertools import count
from pathlib import Path
from random import Random
from tempfile import TemporaryFile
from threading import Event, Thread
from time import monotonic
from typing import Any, Final

import psutil

from deployments.chaos import namespaces
from deployments.chaos.story import DISK, FLOW, Fault, Kind
from digen_core.checkpoints.manifest import CHECKPOINTS_OF_RUN, checkpoints_in
from digen_core.checkpoints.run_state import runs_in
from digen_core.config.load import CONFIG_OF_RUN
from digen_core.transport.metrics import METRICS_OF_RUN

REMOVED: Final = ("evaluation", "timelines", "grids", "tracking", "devices.parquet")
"""Of a run's folder: what a resumed run makes again, or goes on without.

Not the metrics, as not the samples: nobody makes those of iterations before the checkpoint again.
"""
OF_ITERATIONS: Final = ("timelines", "grids")
"""Those that iterations make: where none is left to do, nobody makes them again."""

_SLOW_STOPPED: Final = 0.15  # seconds of each fifth of a second
_SLOW_RUNNING: Final = 0.05
_LOOK_SECONDS: Final = 0.05  # for connections that were made since
_cuts = count()


class Faults:
    """The faults of one story; all that lasts is undone when it is closed."""

    def __init__(self, runs_dir: Path) -> None:
        self._runs_dir = runs_dir
        self._over = Event()
        self._threads: list[Thread] = []
        self._damage: list[Callable[[], object]] = []

    def do(self, fault: Fault, pids: Mapping[str, Collection[int]]) -> list[str]:
        """Let a fault begin, and return whom it struck: a process that is not there is spared.

        Args:
            fault: its targets are names.
            pids: of all processes, by name.
        """
        struck = [name for name in fault.targets if name in pids or name == DISK]
        own = [pid for name in struck for pid in pids.get(name, ())]
        if fault.kind in _SIGNALS:
            send(own, _SIGNALS[fault.kind])
        elif fault.kind in _DAMAGES:
            damage = partial(_DAMAGES[fault.kind], self._runs_dir, Random(str(fault)))
            self._damage.append(damage)
            send(pids[FLOW], signal.SIGKILL)
        else:
            where = self._runs_dir if fault.targets == (DISK,) else own
            thread = Thread(target=_LASTING[fault.kind], args=(where, self._over, fault.seconds))
            thread.start()
            self._threads.append(thread)
        return struck

    def settle(self) -> None:
        """After a run: wait for what lasts to be over, and damage files that nobody uses now."""
        while self._threads:
            self._threads.pop().join()
        while self._damage:
            self._damage.pop()()

    def close(self) -> None:
        """Undo what lasts."""
        self._over.set()
        for thread in self._threads:
            thread.join()


def send(pids: Collection[int], number: signal.Signals) -> None:
    """Send a signal to processes; those that are gone do not matter."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def _pause(pids: Collection[int], over: Event, seconds: float) -> None:
    send(pids, signal.SIGSTOP)
    over.wait(seconds)
    send(pids, signal.SIGCONT)


def _slow(pids: Collection[int], over: Event, seconds: float) -> None:
    end = monotonic() + seconds
    while monotonic() < end and not over.is_set():
        _pause(pids, over, _SLOW_STOPPED)
        over.wait(_SLOW_RUNNING)


def _cut(pids: Collection[int], over: Event, seconds: float) -> None:
    end, lost, number = monotonic() + seconds, set[int](), next(_cuts)
    try:
        while monotonic() < end and not over.is_set():
            for port in _ports(pids) - lost:
                namespaces.lose_packets(port, number)
                lost.add(port)
            over.wait(_LOOK_SECONDS)
    finally:
        namespaces.end_cut(number)


def _ports(pids: Collection[int]) -> set[int]:
    """Return the TCP ports of this machine on which processes listen or talk."""
    found = set()
    for pid in pids:
        with suppress(psutil.NoSuchProcess):
            found |= {at.laddr.port for at in psutil.Process(pid).net_connections("tcp")}
    return found


def _fill(runs_dir: Path, over: Event, seconds: float) -> None:
    with suppress(OSError), TemporaryFile(dir=runs_dir, buffering=0) as file:  # has no name
        with suppress(OSError):
            while True:
                file.write(bytes(1 << 16))
        over.wait(seconds)


def _read_only(runs_dir: Path, over: Event, seconds: float) -> None:
    namespaces.make_read_only(runs_dir)
    over.wait(seconds)
    namespaces.make_writable(runs_dir)


def _flip(runs_dir: Path, rng: Random) -> None:
    """Flip a bit of a file of the newest checkpoint."""
    kept = [checkpoints_in(run / CHECKPOINTS_OF_RUN) for run in runs_in(runs_dir)]
    for checkpoint in [own for of_run in kept for own in of_run][-1:]:
        path = rng.choice(sorted(checkpoint.iterdir()))
        content = bytearray(path.read_bytes())
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
        path.write_bytes(content)


def _remove(runs_dir: Path, rng: Random) -> None:
    """Remove something of a run's folder that can be made again."""
    for config in runs_dir.glob(f"*/{CONFIG_OF_RUN}"):
        run, num_iterations = config.parent, json.loads(config.read_text())["num_iterations"]
        is_over = len(list((run / METRICS_OF_RUN).glob("*"))) >= num_iterations
        names = [name for name in REMOVED if not (is_over and name in OF_ITERATIONS)]
        found = [run / name for name in names if (run / name).exists()]
        for path in rng.sample(found, 1) if found else []:
            shutil.rmtree(path) if path.is_dir() else path.unlink()


_SIGNALS: Final[dict[Kind, signal.Signals]] = {"kill": signal.SIGKILL, "freeze": signal.SIGSTOP}
_DAMAGES: Final[dict[Kind, Callable[[Path, Random], None]]] = {"flip": _flip, "remove": _remove}
_LASTING: Final[dict[Kind, Callable[[Any, Event, float], None]]] = {
    "pause": _pause,
    "slow": _slow,
    "cut": _cut,
    "fill": _fill,
    "read-only": _read_only,
}
