"""The frontier of a job's plans: none of them is both slower and dearer than another.

A plan may leave devices out. Bounds and closed forms find the fleets that are promising, one
simulation judges each of them, and its neighbours while that gains; then the planner searches in
full for some on the frontier.
"""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from math import inf
from typing import Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from digen_core.control.layout import LayoutName
from digen_core.control.schedule import Workload
from digen_core.errors import UserError
from digen_core.planning.job import Job
from digen_core.planning.planner import (
    JobPlan,
    Leeway,
    in_full,
    judge,
    placements,
    splits,
)
from digen_core.planning.spending.fleets import Counts, Fleets
from digen_core.planning.spending.rates import Spending
from digen_core.sim.report import SimulationReport

Item = TypeVar("Item")

SLACK: Final = 1.35  # of a floor above the frontier of the floors, to be judged
NUM_JUDGED: Final = 12  # fleets, by one simulation of each promising layout
PROMISING: Final = 1.3  # times the fastest plan's seconds, of layouts that fleets are judged by
NUM_NEIGHBOURS: Final = 4  # that are judged before the search moves to the best
MAX_CLIMBS: Final = 6
NUM_IN_FULL: Final = 3  # plans on the frontier
NUM_LATE: Final = 1  # and of those that take a little too long
NEAR: Final = 1.05  # of the seconds that are allowed: a full search may gain so much
LATE: Final = 100.0  # times what is spent, of a share of the allowed seconds too many
RICHEST: Final[LayoutName] = "elastic"  # has the mechanisms of all others but stale groups


def frontier(
    job: Job,
    plans: Sequence[JobPlan],
    leeway: Leeway,
    spending: Spending,
    limit: float = inf,
) -> list[JobPlan]:
    """Return plans of which each is faster than all that take less, the fastest first.

    Args:
        job: on all its devices.
        plans: its fastest ones; one at least.
        leeway: what may be chosen; of layouts those of the plans, and the richest.
        spending: of the devices.
        limit: seconds of an iteration that are allowed.
    """
    stale_share = max(leeway.share(layout) for layout in leeway.layouts)
    fleets = Fleets.of(job, [job, *leeway.with_sizes(job)], spending, stale_share)
    search = _Search(fleets, plans, leeway, spending, limit)
    search.judge(search.promising())
    search.climb()
    return search.in_full()


@dataclass(slots=True)
class _Search:
    """Plans of fleets, each judged once."""

    fleets: Fleets
    plans: Sequence[JobPlan]  # the fastest first
    leeway: Leeway
    spending: Spending
    limit: float
    judged: dict[Counts, list[JobPlan]] = field(default_factory=dict)

    def promising(self) -> list[Counts]:
        """Return fleets whose floors are near the frontier of all, from the fastest to the slowest.

        How far the fastest plan is above its floor tells how far those of nearly as many devices
        are; of fewer, which wait less, they are less far.
        """
        fastest = self.plans[0]
        (whole, _), *_ = self.fleets.floors([self._counts(fastest)])
        share = (whole / fastest.seconds) ** (fastest.seconds / self.limit)
        most = NEAR * self.limit * share
        fleets = self._open(self.fleets.every())
        floors = self.fleets.floors(fleets)
        excess = _excess(floors)
        near = np.flatnonzero((excess <= SLACK) & (floors[:, 0] <= most))
        near = near[np.argsort(floors[near, 0], kind="stable")]
        parts = [part for part in np.array_split(near, NUM_JUDGED) if part.size]
        return [fleets[part[np.argmin(excess[part])]] for part in parts]

    def judge(self, fleets: Iterable[Counts]) -> None:
        """Simulate the promising layouts of fleets, unless these are known to do no better."""
        quick = replace(self.leeway, search_sizes=False)
        for own in fleets:
            if not self._open([own]):
                continue
            self.judged[own] = [
                judge(job, layout, quick)
                for layout, workload in self._ways()
                for job in self._placed(own, layout, workload)
            ]

    def _ways(self) -> list[tuple[LayoutName, Workload]]:
        """Return the layouts by which fleets are judged, with sizes: the promising ones of all.

        And the richest: where few devices have to wait for each other, each does whatever is left.
        """
        near = [own for own in self.plans if own.seconds <= PROMISING * self.plans[0].seconds]
        ways = [(own.layout, own.job.workload) for own in near]
        if RICHEST in self.leeway.layouts and RICHEST not in dict(ways):
            ways.append((RICHEST, self.plans[0].job.workload))
        return ways

    def climb(self) -> None:
        """Go from the best fleet to a better one beside it, while there is one."""
        for _ in range(MAX_CLIMBS):
            best = self._best()
            around = self.fleets.neighbours(self._counts(best))
            beside = self._open([own for own in around if own not in self.judged])
            order = np.argsort(self.fleets.floors(beside)[:, 1], kind="stable")
            self.judge(beside[place] for place in order[:NUM_NEIGHBOURS])
            if self._best() is best:
                return

    def in_full(self) -> list[JobPlan]:
        """Return the frontier of the plans, and of those that are searched for in full."""
        front = self._frontier(self._known, NEAR)
        allowed = [own for own in front if own.seconds <= self.limit]
        late = front[len(allowed) :]
        chosen = [*_spread(allowed, NUM_IN_FULL), *_spread(late, NUM_LATE)]
        full = list(self.plans)
        for own in chosen:
            if not any(own is plan for plan in self.plans):
                full += self._in_full(own.job, own.layout)
        *_, best = self._frontier(full)
        if RICHEST in self.leeway.layouts and best.layout != RICHEST:
            full += self._in_full(best.job, RICHEST)
        return self._frontier(full)

    def _in_full(self, job: Job, layout: LayoutName) -> list[JobPlan]:
        """Return the best plan of a fleet and a layout; none has the quantities that are fixed."""
        if not splits(job, layout):
            return []
        sized = judge(job, layout, self.leeway)
        with suppress(UserError):
            return [in_full(sized, self.leeway, partial(self._value, job))]
        return []

    def _best(self) -> JobPlan:
        """Return the plan that takes the least in the time that is allowed."""
        *_, best = self._frontier(self._known)
        return best

    @property
    def _known(self) -> list[JobPlan]:
        return [*self.plans, *chain.from_iterable(self.judged.values())]

    def _value(self, job: Job, report: SimulationReport) -> float:
        """Return what an iteration takes, and much more if it is longer than is allowed."""
        late = max(0.0, report.seconds / self.limit - 1)
        return self.spending.of_report(job, report) * (1 + LATE * late)

    def _worth(self, plan: JobPlan) -> tuple[float, float]:
        return self.spending.of_plan(plan), plan.seconds

    def _frontier(self, plans: Sequence[JobPlan], slack: float = 1.0) -> list[JobPlan]:
        allowed = [own for own in plans if own.seconds <= slack * self.limit]
        points = [(own.seconds, self.spending.of_plan(own)) for own in allowed]
        return [allowed[place] for place in undominated(points)]

    def _open(self, fleets: Sequence[Counts]) -> list[Counts]:
        """Return the fleets that may do better than every plan that is known."""
        floors = self.fleets.floors(fleets)
        is_open = np.isfinite(floors[:, 0]) & (floors[:, 0] <= self.limit)
        for plan in self._known:
            spent, seconds = self._worth(plan)
            is_open &= (floors[:, 0] < seconds) | (floors[:, 1] < spent)
        return [own for own, kept in zip(fleets, is_open, strict=True) if kept]

    def _placed(self, counts: Counts, layout: LayoutName, workload: Workload) -> list[Job]:
        """Return the jobs of a fleet, with these sizes, that a layout can do."""
        sized = replace(self.fleets.job(counts), workload=workload)
        jobs = placements(sized, may_leave_out=False)
        return [job for job in jobs if splits(job, layout)]

    def _counts(self, plan: JobPlan) -> Counts:
        used = {device.name for device in plan.job.fleet}
        return tuple(
            sum(device.name in used for device in part.devices) for part in self.fleets.parts
        )


def undominated(points: Sequence[tuple[float, float]]) -> list[int]:
    """Return the places of the points of which no other is less in both, by the first number."""
    found, least = list[int](), inf
    for place in sorted(range(len(points)), key=points.__getitem__):
        if points[place][1] < least:
            found.append(place)
            least = points[place][1]
    return found


def _excess(points: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return how far each is above the frontier: both its numbers are so many times too large."""
    with np.errstate(divide="ignore", invalid="ignore"):  # 0 / 0: both are free
        ratios = np.nan_to_num(points[:, None, :] / points[None, :, :], nan=1.0)
    found: NDArray[np.float64] = ratios.min(axis=2).max(axis=1, initial=1.0)
    return found


def _spread(items: Sequence[Item], most: int) -> list[Item]:
    """Return so many of them at most, the first and the last and some evenly between."""
    if len(items) <= most:
        return list(items)
    return [items[round(own)] for own in np.linspace(0, len(items) - 1, most)]
