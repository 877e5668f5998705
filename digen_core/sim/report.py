"""The report of a simulation."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from digen_core.control.schedule import Schedule
from digen_core.records import Crossing, Span
from digen_core.sim.transfers import crossed

OCCUPYING = frozenset({"denoise", "train", "step", "switch"})  # kinds of spans that a device does


@dataclass(slots=True)
class Staleness:
    """Versions between the one that generated a pair and the one that it was trained at."""

    maximum: int = 0
    total: int = 0  # over pairs
    num_pairs: int = 0

    def add(self, versions: int, num_pairs: int) -> None:
        """Count pairs."""
        self.maximum = max(self.maximum, versions)
        self.total += versions * num_pairs
        self.num_pairs += num_pairs

    @property
    def mean(self) -> float:
        """Over all pairs; 0 without any."""
        return self.total / self.num_pairs if self.num_pairs else 0.0


@dataclass(frozen=True, slots=True)
class SimulationReport:
    """Seconds are virtual. Shares and idle seconds are those of the steady state."""

    seconds: float  # per iteration, in steady state
    iteration_ends: tuple[float, ...]  # since the start
    steady: tuple[float, float]  # from when to when it is in steady state
    busy_share: dict[str, float]  # by device
    idle_seconds: dict[str, float]  # by device, per iteration
    max_staleness: int
    mean_staleness: float  # over pairs
    crossed: dict[frozenset[str], float]  # bytes per iteration, by the sites of the link
    spans: list[Span] = field(repr=False)

    @property
    def mean_busy_share(self) -> float:
        """Over the devices."""
        return sum(self.busy_share.values()) / len(self.busy_share)


def make_report(
    iteration_ends: Sequence[float],
    spans: list[Span],
    devices: Iterable[str],
    staleness: Staleness,
    schedule: Schedule,
    crossings: Iterable[Crossing] = (),
) -> SimulationReport:
    """Summarise a simulation by its steady state."""
    first, last = steady_iterations(len(iteration_ends), schedule)
    begin, end, num_iterations = iteration_ends[first], iteration_ends[last], last - first
    if end <= begin:  # all ended when the slowest device held the last version
        begin, num_iterations = 0.0, last + 1
    busy = dict.fromkeys(devices, 0.0)
    for span in spans:
        if span.kind in OCCUPYING and span.device in busy:
            busy[span.device] += max(0.0, min(span.ended, end) - max(span.started, begin))
    return SimulationReport(
        seconds=(end - begin) / num_iterations,
        iteration_ends=tuple(iteration_ends),
        steady=(begin, end),
        busy_share={name: seconds / (end - begin) for name, seconds in busy.items()},
        idle_seconds={
            name: (end - begin - seconds) / num_iterations for name, seconds in busy.items()
        },
        max_staleness=staleness.maximum,
        mean_staleness=staleness.mean,
        crossed=crossed(crossings, begin, end, num_iterations),
        spans=spans,
    )


def steady_iterations(num_iterations: int, schedule: Schedule) -> tuple[int, int]:
    """Return between the ends of which two iterations a job is in steady state.

    The first iteration warms up. With stale groups the first half does, because what was generated
    ahead at first is used up only slowly, and the last iteration is left out too, because no next
    one took a part of its time.
    """
    cooling = num_cooling(schedule)
    first = (num_iterations - cooling) // 2 - 1 if cooling else 0
    return first, num_iterations - 1 - cooling


def num_cooling(schedule: Schedule) -> int:
    """Return how many iterations at the end are not like those in steady state."""
    return schedule.max_staleness if schedule.max_stale_share else 0
