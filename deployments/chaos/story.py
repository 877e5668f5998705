"""Stories: what is done to a run, to whom and when, drawn from a seed.

Story 7 of seed 3 is the same whatever is asked for beside it. A fault strikes when the run reaches
a named point for the n-th time in an iteration, or some seconds later.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Final, Literal

from digen_core.config.run import RunConfig
from digen_core.control.layout import LAYOUTS
from digen_core.control.protocol import Device
from tasks.cluster.cluster import local_devices

Kind = Literal["kill", "freeze", "pause", "slow", "cut", "fill", "read-only", "flip", "remove"]
KINDS: Final[dict[Kind, str]] = {
    "kill": "processes are killed by SIGKILL",
    "freeze": "processes are stopped by SIGSTOP, for ever",
    "pause": "processes are stopped for some seconds",
    "slow": "processes run a quarter of the time for some seconds",
    "cut": "all packets from and to processes are lost for some seconds",
    "fill": "the disk of the runs is full for some seconds",
    "read-only": "the disk of the runs can only be read for some seconds",
    "flip": "the flow is killed, and a bit of the newest checkpoint flips",
    "remove": "the flow is killed, and files that can be made again or done without are removed",
}
ISOLATED: Final[frozenset[Kind]] = frozenset({"cut", "fill", "read-only"})
"""Kinds that need namespaces of the story's own."""
_WEIGHTS: Final[dict[Kind, int]] = {
    "kill": 8,
    "freeze": 2,
    "pause": 2,
    "slow": 2,
    "cut": 2,
    "fill": 1,
    "read-only": 1,
    "flip": 1,
    "remove": 1,
}

Service = Literal["mlflow", "scorer", "scheduler"]
SERVICES: Final[dict[Service, str]] = {
    "mlflow": "a server of MLflow",
    "scorer": "the config's rewards behind HTTP",
    "scheduler": "a Dask scheduler, with workers that are not the run's own",
}
"""Processes that may be beside a run, which a supervisor starts again when they have ended."""

FLOW: Final = "flow"
PREFECT: Final = "prefect"
DISK: Final = "disk"
ITS_DEVICE: Final = "its device"
"""The device that the instruction names, with which a point is reached."""

DEVICE_POINTS: Final = {
    "denoise": "Generate",
    "score": "Score",
    "train": "Train",
    "reduce": "Reduce",
    "step": "Step",
    "copy": "CopyState",
    "push": "Push",
}
"""Points that an instruction to a device reaches."""
POINTS: Final = {
    **DEVICE_POINTS,
    "advantages": "AdvantagesComputed",
    "reduced": "GradientReduced",
    "stepped": "Stepped",
    "copied": "StateCopied",
    "loaded": "VersionLoaded",
    "finish": "FinishIteration",
}
"""Points of an iteration -> name of the event or instruction."""
PHASES: Final = {
    "prepare": "loading the model",
    "measure": "measuring what work costs",
    "evaluate": "evaluating version",
    "export": "exporting version",
}
"""Points between iterations -> how the line begins that the run says there."""

_TWO_FAULTS: Final = 0.3  # share of stories
_WHOLE_HOST: Final = 0.15  # share of faults of processes
_SERVICE_WEIGHT: Final = 4  # a service is struck so many times as often as a worker
LONGEST_DELAY: Final = 0.6  # seconds


@dataclass(frozen=True, slots=True)
class Moment:
    """When the run reaches a point for the n-th time in an iteration (0-based), or in a phase."""

    point: str
    iteration: int = -1  # of a phase
    count: int = 1

    def __str__(self) -> str:
        if self.iteration < 0:
            return f"{self.point} ({self.count})" if self.count > 1 else self.point
        return f"{self.point} {self.count} of iteration {self.iteration + 1}"


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that is done to processes, or to the disk."""

    kind: Kind
    targets: tuple[str, ...]
    """Workers by name, the flow process, Prefect's server, services, the disk, or `ITS_DEVICE`."""

    moment: Moment
    delay: float = 0.0  # seconds after the moment
    seconds: float = 0.0  # that it lasts; 0: for ever

    def __str__(self) -> str:
        after = f" + {self.delay:.2f} s" if self.delay else ""
        lasting = f" for {self.seconds:.0f} s" if self.seconds else ""
        return f"{self.kind} {' and '.join(self.targets)}{lasting} at {self.moment}{after}"


@dataclass(frozen=True, slots=True)
class Story:
    """Faults of one run."""

    seed: int
    number: int
    faults: tuple[Fault, ...]

    @property
    def name(self) -> str:
        """Seed and number."""
        return f"{self.seed}.{self.number}"

    def __str__(self) -> str:
        return "; ".join(map(str, self.faults))


def devices_of(config: RunConfig) -> list[tuple[Device, Collection[str]]]:
    """Return the devices of a run that starts its own, and what each declares; of pools, too."""
    is_colocated = config.schedule.layout != "auto" and LAYOUTS[config.schedule.layout].colocated
    devices = local_devices(config.cluster, colocated=is_colocated)
    found: list[tuple[Device, Collection[str]]] = [(device, device.roles) for device in devices]
    for pool, number in config.cluster.reward_workers.items():
        names = [f"{pool}-{index}" for index in range(number)]
        found += [(Device(name, frozenset()), {pool}) for name in names]
    return found


def workers_of(config: RunConfig) -> list[str]:
    """Return the names of those devices' workers."""
    return [name for device, _ in devices_of(config) for name in (device.name, *device.followers)]


def draw(
    seed: int,
    number: int,
    config: RunConfig,
    kinds: Iterable[Kind] = KINDS,
    services: Collection[Service] = (),
) -> Story:
    """Return a story of a seed.

    Args:
        seed: of all stories.
        number: of the story.
        config: of the run, which has at least two iterations.
        kinds: of faults that may be drawn.
        services: that are beside the run.
    """
    rng = Random(f"{seed}.{number}")
    allowed = [kind for kind in KINDS if kind in set(kinds)]
    count = 2 if rng.random() < _TWO_FAULTS else 1
    targets = [name for name in SERVICES if name in set(services)]
    faults = [_fault(rng, config, allowed, targets) for _ in range(count)]
    return Story(seed, number, tuple(faults))


def _fault(
    rng: Random, config: RunConfig, kinds: Sequence[Kind], services: Sequence[Service]
) -> Fault:
    (kind,) = rng.choices(kinds, [_WEIGHTS[kind] for kind in kinds])
    moment = _moment(rng, config, kind)
    delay = rng.choice([0.0, round(rng.uniform(0, LONGEST_DELAY), 2)])
    if kind in ("fill", "read-only", "flip", "remove"):
        targets: tuple[str, ...] = (DISK,)
    else:
        targets = _targets(rng, config, kind, moment, services)
    timeout = config.cluster.heartbeat_timeout
    seconds = {
        "pause": rng.uniform(0.5, 0.7 * timeout),
        "slow": rng.uniform(2, 8),
        "cut": rng.choice([rng.uniform(1, 0.7 * timeout), rng.uniform(1.5, 3) * timeout]),
        "fill": rng.uniform(1, 6),
        "read-only": rng.uniform(1, 6),
    }.get(kind, 0.0)
    return Fault(kind, targets, moment, delay, round(seconds, 1))


def _moment(rng: Random, config: RunConfig, kind: Kind) -> Moment:
    last = config.num_iterations - 1
    if kind == "flip":  # the newest checkpoint is damaged, and one before it is there
        return Moment("reduced", rng.randint(min(2, last), last))
    if rng.random() < 0.2:
        point = rng.choice(list(PHASES))
        return Moment(point, count=rng.randint(1, 2) if point == "evaluate" else 1)
    point = rng.choice(list(POINTS))
    several = point in ("denoise", "score", "train", "push", "loaded")
    return Moment(point, rng.randint(0, last), rng.randint(1, 3) if several else 1)


def _targets(
    rng: Random, config: RunConfig, kind: Kind, moment: Moment, services: Sequence[Service]
) -> tuple[str, ...]:
    workers = workers_of(config)
    if rng.random() < _WHOLE_HOST:  # those of one number, as if they were on one machine
        hosts = sorted({_host(name) for name in workers})
        host = rng.choice(hosts)
        return tuple(name for name in workers if _host(name) == host)
    others = [FLOW, PREFECT] if kind in ("kill", "pause", "slow") else [PREFECT]
    if kind != "freeze":  # no supervisor would notice
        others += [*services] * _SERVICE_WEIGHT
    near = [ITS_DEVICE] * 4 if moment.point in DEVICE_POINTS else []
    return (rng.choice([*workers, *others, *near]),)


def _host(worker: str) -> str:
    return worker.rpartition("-")[2].partition(".")[0]
