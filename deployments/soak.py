"""A soak: one long run in which workers are killed, and whether anything grows with its iterations.

The memory of each process is read as each iteration ends. The first part is left out: caches fill.
Every second device is never killed, so that its memory can be followed.
"""

import os
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from itertools import combinations
from math import inf
from pathlib import Path
from random import Random
from signal import SIGKILL
from statistics import median
from threading import Event, Lock, Thread
from typing import TYPE_CHECKING, Final

import psutil
from rich.console import Console

from deployments.chaos.faults import send
from deployments.chaos.story import FLOW
from deployments.local import apply_settings, run_training
from deployments.processes import WorkerProcesses, prefect_server_of
from deployments.views.terminal import borderless
from digen_core.config.run import RunConfig
from digen_core.errors import UserError
from digen_core.inputs.text import number_of
from digen_core.records import IterationRecord
from digen_core.transport.files import make_folder
from flows.runtime.observers import Observer, watching
from tasks.cluster.start_method import variables_set

if TYPE_CHECKING:
    from distributed import Scheduler

LIMIT_MB: Final = 0.05
"""MB by which a process may grow with an iteration."""
LIMIT_TASKS: Final = 0.5
"""Tasks by which those that Dask's scheduler knows may grow with an iteration."""
WARM_UP: Final = 0.3
"""Share of the iterations that is not looked at."""
LEAST_READINGS: Final = 5
"""Of a process, for its growth to be told."""
MB: Final = 1e6

SERVER: Final = "Prefect's server"
DATABASE: Final = "Prefect's database"
TASKS: Final = "tasks that Dask's scheduler knows"
_LIMITS: Final = {DATABASE: inf, TASKS: LIMIT_TASKS}
"""Of what is no process. The database has its bound in `tracking.keep_in_prefect`."""


@dataclass(frozen=True, slots=True)
class Growth:
    """What a process, the database (MB) or the scheduler (tasks) had in some iterations."""

    name: str
    readings: Mapping[int, float]  # by iteration

    @property
    def slope(self) -> float:
        """With each iteration: the median over pairs of readings, which no single jump moves."""
        pairs = combinations(self.readings.items(), 2)
        return median((last - first) / (j - i) for (i, first), (j, last) in pairs)

    @property
    def holds(self) -> bool:
        """Whether it grows no more than it may."""
        return self.slope <= _LIMITS.get(self.name, LIMIT_MB)


@dataclass
class Soak(Observer):
    """An observer that reads the memory of a run's processes, and kills workers."""

    folder: Path
    """In which Prefect's database is."""
    seed: int
    every_seconds: float
    """Between two kills."""
    pools: Collection[str] = ()
    """Whose workers are not killed: a run ends if all of a pool are gone for half a minute."""
    readings: dict[tuple[str, int], dict[int, float]] = field(
        default_factory=lambda: defaultdict(dict)
    )
    """By iteration, of each name and process."""
    num_done: int = 0
    killed: list[str] = field(default_factory=list)
    _run_id: str = ""
    _mortal: list[str] = field(default_factory=list)
    _workers: WorkerProcesses = field(default_factory=WorkerProcesses)
    _asking: Lock = field(default_factory=Lock)

    def on_open(self, run_dir: Path) -> None:
        """Note which run it is."""
        self._run_id = run_dir.name

    def on_iteration(self, record: IterationRecord) -> None:
        """Read what each process has."""
        self.num_done += 1
        own = os.getpid()
        workers = self._pids()
        devices = [name for name in workers if name.rpartition("-")[0] not in self.pools]
        self._mortal = self._mortal or sorted(devices)[::2]
        pids = {FLOW: own, **workers}
        if (server := prefect_server_of(own)) is not None:
            pids[SERVER] = server
        for name, pid in pids.items():
            with suppress(psutil.NoSuchProcess):
                memory = psutil.Process(pid).memory_info().rss
                self.readings[name, pid][record.iteration] = memory / MB
        self.readings[DATABASE, 0][record.iteration] = database_bytes(self.folder) / MB
        self.readings[TASKS, 0][record.iteration] = self._num_tasks()

    @contextmanager
    def killing(self) -> Iterator[None]:
        """Kill a worker from time to time while the body runs."""
        over, random = Event(), Random(self.seed)

        def kill() -> None:
            while not over.wait(self.every_seconds):
                pids = self._pids()
                if there := [name for name in self._mortal if name in pids]:
                    name = random.choice(there)
                    send([pids[name]], SIGKILL)
                    self.killed.append(name)

        thread = Thread(target=kill, name="soak")
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def _num_tasks(self) -> int:
        from flows.runtime.context import context_of
        from tasks.cluster.calls import on_scheduler

        found: int = on_scheduler(context_of(self._run_id).client, num_tasks)
        return found

    def _pids(self) -> dict[str, int]:
        with self._asking:
            return self._workers.of(self._run_id)

    @property
    def begin(self) -> int:
        """The first iteration that is looked at."""
        return int(WARM_UP * self.num_done)

    def found(self) -> list[Growth]:
        """Return the growth of all that was there throughout."""
        begin, grown = self.begin, []
        for (name, _), readings in self.readings.items():
            kept = {iteration: mb for iteration, mb in readings.items() if iteration >= begin}
            lived = len(kept) >= 0.9 * (self.num_done - begin)
            if len(kept) >= LEAST_READINGS and lived:
                grown.append(Growth(name, kept))
        return sorted(grown, key=lambda growth: growth.name)


def database_bytes(folder: Path) -> int:
    """Return the bytes of the files of a Prefect server's database."""
    return sum(path.stat().st_size for path in folder.glob("prefect.db*"))


def num_tasks(dask_scheduler: "Scheduler") -> int:
    """Return how many tasks a scheduler knows, in its process."""
    return len(dask_scheduler.tasks)


def main(config: RunConfig, seed: int, every_seconds: float, console: Console) -> bool:
    """Train while workers are killed, print what grew, and say whether nothing grew too much.

    Raises:
        UserError, RunFailedError, RunStoppedError: as of the run.
    """
    apply_settings()
    from prefect.settings import get_current_settings

    if (url := get_current_settings().api.url) is not None:
        raise UserError(
            f"Prefect is told to use the server at {url} (PREFECT_API_URL, a profile or "
            "prefect.toml); a soak measures one that it starts itself: leave it out"
        )
    runs_dir = Path(config.tracking.runs_dir).resolve()
    folder = runs_dir / f"soak-{config.name}-{datetime.now():%Y%m%d-%H%M%S}"
    tracking = config.tracking.model_copy(update={"runs_dir": str(folder)})
    home = folder / "prefect"
    make_folder(home)
    soak = Soak(home, seed, every_seconds, config.pools)
    with variables_set({"PREFECT_HOME": str(home)}), watching(soak), soak.killing():
        try:
            run_training(config.model_copy(update={"tracking": tracking}))
        finally:  # what was found until then, if it is stopped
            holds = print_soak(soak, console)
    return holds


def print_soak(soak: Soak, console: Console) -> bool:
    """Print what each process had, and say whether none grew too much."""
    grown = soak.found()
    table = borderless(f"from iteration {soak.begin + 1} on")
    table.add_column("what")
    for heading in ("first", "last", "an iteration"):
        table.add_column(heading, justify="right")
    for growth in grown:
        unit = "" if growth.name == TASKS else ", MB"
        first, *_, last = growth.readings.values()
        table.add_row(growth.name + unit, f"{first:.1f}", f"{last:.1f}", f"{growth.slope:+.3f}")
    console.print(table)
    grows = [growth.name for growth in grown if not growth.holds]
    verdict = f"no process grows by more than {LIMIT_MB} MB an iteration"
    if not grown:
        verdict = "too few to tell what grows"
    elif grows:
        verdict = f"too much grows: {', '.join(grows)}"
    done, killed = number_of(soak.num_done, "iteration"), number_of(len(soak.killed), "worker")
    console.print(f"{done}, {killed} killed; {verdict}")
    return bool(grown) and not grows
