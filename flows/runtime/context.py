"""The context of a run: what it is, and where it runs. It is frozen; what changes is beside it.

Flows reach it in their process by the run's id; it is never pickled into a task. How far the run is
stands in its :class:`~flows.runtime.progress.Progress`, which workers it has in its
:class:`~flows.runtime.fleet.fleet.Fleet`.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from threading import Lock
from typing import Any

from distributed import Client

from digen_core.checkpoints.manifest import Lineage
from digen_core.config.run import RunConfig
from digen_core.data.prompts import Prompt
from digen_core.records import FIRST, LAST, RunReport
from digen_core.trace.live import LiveTrace
from digen_core.trace.prices import price_per_second
from flows.runtime.fleet.fleet import Fleet
from flows.runtime.fleet.watch import Watch
from flows.runtime.observers import stopped
from flows.runtime.progress import Progress
from flows.runtime.requests import Control
from tasks.tracking.tracker import Tracker
from tasks.workers import Workers


@dataclass(frozen=True)
class RunContext:
    """What a run is: its config, prompts, cluster, workers and trackers."""

    run_id: str
    config: RunConfig
    run_dir: Path
    prompts: list[Prompt]
    evaluation_prompts: list[Prompt]
    address: str  # of the Dask scheduler
    client: Client
    fleet: Fleet
    workers: Workers
    tracker: Tracker
    lineage: Lineage
    progress: Progress = field(default_factory=Progress)
    inbox: SimpleQueue[Any] = field(default_factory=SimpleQueue)  # what the conductor hears of
    trace: LiveTrace = field(default_factory=LiveTrace)  # what the devices do
    publishing: Lock = field(default_factory=Lock)  # records are shown one after the other
    learning: Lock = field(default_factory=Lock)  # what work costs; for moments, unlike the above
    when_free: list[Callable[[], None]] = field(default_factory=list)  # done without its workers
    control: Control = field(init=False)  # what a person asks for
    watch: Watch = field(init=False)  # over the workers

    def __post_init__(self) -> None:
        object.__setattr__(self, "control", Control(self.inbox.put, stopped))
        object.__setattr__(self, "watch", Watch(self.client, self.config.cluster))

    @property
    def shared_dir(self) -> Path:
        """The run's folder as its workers are told of it: they may be started in other ones."""
        return self.run_dir.absolute()

    @property
    def limit_reached(self) -> str | None:
        """Which limit of the config is used up, in words; None: there is time and money left."""
        minutes, cost, progress = self.config.max_minutes, self.config.max_cost, self.progress
        if minutes is not None and progress.seconds > 60 * minutes:
            return f"max_minutes ({minutes:g}) have passed"
        if cost is not None and progress.spent >= cost:
            return f"max_cost ({cost:g}) is spent"
        return None

    @property
    def price_per_second(self) -> float:
        """What the devices cost now, whatever they do."""
        return price_per_second(self.config.cluster.price_per_hour, self.fleet.devices)

    def last_before_evaluation(self, index: int) -> int:
        """Return the last iteration from this one on that no evaluation comes before."""
        total = self.config.num_iterations
        every = self.config.evaluation.every or total
        return min((index // every + 1) * every, total) - 1

    def evaluation_before(self, index: int) -> str | None:
        """Return the tag of the evaluation that comes before an iteration, if one does."""
        if index == 0:
            return FIRST
        every = self.config.evaluation.every
        return f"iteration-{index:04d}" if every and index % every == 0 else None

    def report(self) -> RunReport:
        """Return what the run achieved."""
        progress = self.progress
        return RunReport(
            run_id=self.run_id,
            run_dir=str(self.run_dir),
            version=progress.version,
            num_iterations=progress.num_iterations,
            seconds=progress.seconds,
            before=progress.evaluations.get(FIRST),
            after=progress.evaluations[LAST],
            view=self.tracker.describe(),
        )


_contexts: dict[str, RunContext] = {}


def context_of(run_id: str) -> RunContext:
    """Return the context of an open run."""
    return _contexts[run_id]


@contextmanager
def registered(run: RunContext) -> Iterator[RunContext]:
    """Make a run's context reachable by its id while the body runs."""
    _contexts[run.run_id] = run
    try:
        yield run
    finally:
        del _contexts[run.run_id]
