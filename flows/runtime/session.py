"""What a run's flows share in the flow process: reached by run id, never pickled into a task."""

from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from threading import Lock
from time import time
from typing import Any, Protocol

from distributed import Client
from prefect.futures import PrefectFuture

from digen_core.algorithms.ddpo import RewardHistory
from digen_core.checkpoints.manifest import Lineage
from digen_core.config.run import RunConfig
from digen_core.control.costs import Costs
from digen_core.control.protocol import Device
from digen_core.data.prompts import Metadata, Prompt
from digen_core.planning.profile import Profile
from digen_core.records import EvaluationReport, IterationRecord, RunReport
from digen_core.rollout.steps import Steps
from digen_core.trace.live import LiveTrace
from flows.runtime.fleet.watch import Watch
from flows.runtime.requests import Control
from tasks.tracking import Tracker

MAX_FRAGMENTS = 1 << 16  # of a group


class Observer(Protocol):
    """Somebody who watches a run in this process, such as the terminal."""

    def on_phase(self, text: str) -> None:
        """Something that takes a while begins."""
        ...

    def on_step(self, done: int, total: int) -> None:
        """Some of the equal pieces of what began last are done."""
        ...

    def on_warning(self, text: str) -> None:
        """Something is wrong that the run can live with."""
        ...

    def on_open(self, run_dir: Path) -> None:
        """A run has its folder; from now on it can be resumed."""
        ...

    def on_stop(self, why: str) -> None:
        """Somebody stopped the run from elsewhere; it ends now."""
        ...

    def on_iteration(self, record: IterationRecord) -> None:
        """An iteration is over."""
        ...

    def on_evaluation(self, tag: str, report: EvaluationReport) -> None:
        """A version was evaluated."""
        ...


@dataclass(frozen=True, slots=True)
class Round:
    """The prompts of one iteration, and which steps of their trajectories are noisy and trained."""

    index: int
    prompts: list[str]  # of its N groups, then of those that may take their place
    steps: Steps
    metadata: list[Metadata]  # of each prompt
    refill: int = 0  # times that a group may be replaced
    costs: tuple[float, ...] = ()  # of the groups, relative to each other, if they differ

    @property
    def num_groups(self) -> int:
        """Groups that the iteration begins and ends with (N)."""
        return len(self.prompts) // (1 + self.refill)

    def successor_of(self, group: int) -> int | None:
        """Return the group that takes the place of one without signal; None if there is none."""
        successor = group + self.num_groups
        return successor if successor < len(self.prompts) else None

    def priority_of(self, group: int, fragment: int = 0) -> int:
        """Return the priority of a fragment: earlier ones first, all after training.

        So a device that has two ends the one that it began.
        """
        return -(self.index * len(self.prompts) + group + 1) * MAX_FRAGMENTS - fragment


@dataclass
class Session:
    """One run: its config, its workers, and how far it is."""

    run_id: str
    config: RunConfig
    run_dir: Path
    prompts: list[Prompt]
    evaluation_prompts: list[Prompt]
    address: str  # of the Dask scheduler
    client: Client
    devices: list[Device]
    addresses: dict[str, str]  # device -> address of its worker; of those that are made ready, too
    pools: dict[str, list[str]]  # name -> workers that only score
    tracker: Tracker
    lineage: Lineage
    known: dict[str, Device] = field(default_factory=dict)  # all that ever took part, by name
    loaded: set[str] = field(default_factory=set)  # addresses of workers that hold the model
    checkpoint: Path | None = None  # to begin with, in place of version 0
    damaged: set[Path] = field(default_factory=set)  # checkpoints whose content is not whole
    reward_history: RewardHistory = field(default_factory=dict)  # DDPO's, to begin with
    evaluations: dict[str, EvaluationReport] = field(default_factory=dict)  # by tag
    inbox: SimpleQueue[Any] = field(default_factory=SimpleQueue)  # what the conductor hears of
    trace: LiveTrace = field(default_factory=LiveTrace)  # what the devices do
    publishing: Lock = field(default_factory=Lock)  # records are shown one after the other
    started: float = field(default_factory=time)
    state: PrefectFuture[Any] | None = None  # TrainState of the current version, on a trainer
    published: dict[int, PrefectFuture[Any]] = field(default_factory=dict)  # PolicyVersion, by
    # version: the newest, and those before it on which groups may have begun
    told: set[str] = field(default_factory=set)  # warnings that are given once
    empty_since: dict[str, float] = field(default_factory=dict)  # pools without a worker
    losses: Counter[str] = field(default_factory=Counter)  # of each worker, since the last progress
    joining: dict[str, Any] = field(
        default_factory=dict
    )  # name -> Newcomer of flows/runtime/fleet/joining.py
    num_lost: int = 0  # workers
    num_joined: int = 0
    num_resumed: int = 0  # times that it went back to its last checkpoint
    version: int = 0
    hashes: dict[int, str] = field(default_factory=dict)  # version -> content hash
    step_seconds: float = 0.0  # one denoising step of a fragment, as last measured
    profile: Profile | None = None  # what work costs; set when the workers are ready
    num_iterations: int = 0  # finished
    num_kept: int = field(init=False)  # of them, those that the last checkpoint has
    control: Control = field(init=False)  # what a person asks for
    watch: Watch = field(init=False)  # over the workers
    num_at_start: int = field(init=False)  # devices
    rollout_share: float = field(init=False)  # of the devices that the run began with

    def __post_init__(self) -> None:
        self.control = Control(self.inbox.put, stopped)
        self.num_kept = self.num_iterations
        self.watch = Watch(self.client, self.config.cluster)
        self.known |= {device.name: device for device in self.devices}
        self.num_at_start = len(self.devices)
        self.rollout_share = len(self.rollout_devices()) / max(len(self.devices), 1)

    @property
    def known_costs(self) -> Costs:
        """What work costs, as far as it is known."""
        return self.profile.costs if self.profile else Costs(kinds={})

    @property
    def out_of_time(self) -> bool:
        """Whether the config's time is used up."""
        minutes = self.config.max_minutes
        return minutes is not None and time() - self.started > 60 * minutes

    def last_before_evaluation(self, index: int) -> int:
        """Return the last iteration from this one on that no evaluation comes before."""
        total = self.config.num_iterations
        every = self.config.evaluation.every or total
        return min((index // every + 1) * every, total) - 1

    @property
    def all_devices(self) -> list[Device]:
        """Those of the run, and others whose spans its folder holds."""
        names = {device.name for device in self.devices}
        return self.devices + [d for name, d in self.known.items() if name not in names]

    def join(self, device: Device) -> None:
        """Let a device take part, whose worker is in ``addresses``."""
        self.devices.append(device)
        self.known[device.name] = device
        self.num_joined += 1

    def progress(self) -> None:
        """Note that something was finished: losses before it are forgiven."""
        self.losses.clear()

    def lose(self, names: Collection[str]) -> None:
        """Count devices out whose workers are gone."""
        self.num_lost += len(names)
        self.losses.update(names)
        self.devices = [device for device in self.devices if device.name not in names]
        for name in names:
            self.loaded.discard(self.addresses.pop(name))

    def evaluation_before(self, index: int) -> str | None:
        """Return the tag of the evaluation that comes before an iteration, if one does."""
        if index == 0:
            return "before"
        every = self.config.evaluation.every
        return f"iteration-{index:04d}" if every and index % every == 0 else None

    def report(self) -> RunReport:
        """Return what the run achieved."""
        return RunReport(
            run_id=self.run_id,
            run_dir=str(self.run_dir),
            version=self.version,
            num_iterations=self.num_iterations,
            seconds=time() - self.started,
            before=self.evaluations.get("before"),
            after=self.evaluations["after"],
            view=self.tracker.describe(),
        )

    def rollout_devices(self) -> list[str]:
        """Names of the devices that generate."""
        return [device.name for device in self.devices if "rollout" in device.roles]

    def trainer_devices(self) -> list[str]:
        """Names of the devices that train."""
        return [device.name for device in self.devices if "trainer" in device.roles]


_sessions: dict[str, Session] = {}
_observers: list[Observer] = []


def session_of(run_id: str) -> Session:
    """Return the open session of a run."""
    return _sessions[run_id]


@contextmanager
def registered(session: Session) -> Iterator[Session]:
    """Make a session reachable by its run id while the body runs."""
    _sessions[session.run_id] = session
    try:
        yield session
    finally:
        del _sessions[session.run_id]


@contextmanager
def watching(observer: Observer) -> Iterator[None]:
    """Let somebody watch the runs of this process while the body runs."""
    _observers.append(observer)
    try:
        yield
    finally:
        _observers.remove(observer)


def observers() -> tuple[Observer, ...]:
    """Return who watches."""
    return tuple(_observers)


def say(text: str) -> None:
    """Tell the observers what begins."""
    for observer in _observers:
        observer.on_phase(text)


def count(done: int, total: int) -> None:
    """Tell the observers how many pieces are done of what began."""
    for observer in _observers:
        observer.on_step(done, total)


def warn(text: str) -> None:
    """Tell the observers what is wrong, or what to do about it."""
    for observer in _observers:
        observer.on_warning(text)


def stopped(why: str) -> None:
    """Tell the observers that somebody stopped the run."""
    for observer in _observers:
        observer.on_stop(why)
