"""Alternatives: what unequal devices, some far from others, can do together in an iteration.

All may be stages of one pipeline, or fewer, with codecs at slow links. Each fence may be a replica,
and gradients are exchanged. Or one fence trains, and the others generate.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import numpy as np

from digen_core.planning.stages.chain import Chain
from digen_core.planning.stages.codecs import CODECS, NONE
from digen_core.planning.stages.fences import fences_of
from digen_core.planning.stages.network import Network
from digen_core.planning.stages.op_fence import op_fence
from digen_core.planning.stages.placement import Stage
from digen_core.planning.stages.plans import Plan, Work, fastest, plan_of


@dataclass(frozen=True, slots=True)
class Row:
    """An alternative, and what an iteration takes with it."""

    name: str
    seconds: float
    num_devices: float  # that do something; a mean, if it is of several draws
    crossing_bytes: float  # from one fence to another
    crossing: str  # what that is


@dataclass(frozen=True)
class Case:
    """A chain, the devices that it is to be put on, and what they are to do."""

    chain: Chain
    network: Network
    work: Work
    trajectory_bytes: float  # of a sample
    seed: int = 0

    @property
    def version_bytes(self) -> float:
        """Of what is trained."""
        return self.chain.total("trained_bytes")

    @property
    def sum_bytes(self) -> float:
        """Of a sum of gradients."""
        return self.chain.total("sum_bytes")

    def part(self, devices: Sequence[int]) -> "Case":
        """Return the case of some of the devices alone, numbered anew."""
        own = self.network.part(devices)
        return Case(self.chain, own, self.work, self.trajectory_bytes, self.seed)


@dataclass(frozen=True, slots=True)
class Alone:
    """A fence that can hold the chain, with its best pipeline."""

    fence: Sequence[int]
    plan: Plan


def alternatives(case: Case) -> Iterator[Row]:
    """Yield what can be done; what memory allows."""
    fences = fences_of(case.network, case.seed)
    yield from _pipelines(case, fences)
    alone = list(_alone(case, fences))
    if not alone:
        return
    plan = min((own.plan for own in alone), key=lambda plan: plan.seconds(case.work))
    yield Row("one fence alone", plan.seconds(case.work), len(plan.stages), 0.0, "nothing")
    if len(alone) > 1:
        yield _best_set(case, alone, partial(_replicas, case))
        yield _best_set(case, alone, partial(_far_rollout, case))


def pipeline_row(name: str, case: Case, plan: Plan, fences: Sequence[Sequence[int]]) -> Row:
    """Return the row of a pipeline that does all the work."""
    home = {device: place for place, fence in enumerate(fences) for device in fence}
    work, cuts = case.work, case.chain.of_blocks("cut_bytes")
    there, back = work.num_samples * work.num_steps + work.num_pairs, work.num_pairs
    crossing = sum(
        cuts[after.first] * (there / codec.there + back / codec.back)
        for (before, after), codec in zip(pairwise(plan.stages), plan.codecs, strict=True)
        if home[before.device] != home[after.device]
    )
    what = "streams" if crossing else "nothing"
    return Row(name, plan.seconds(work), len(plan.stages), float(crossing), what)


def _pipelines(case: Case, fences: Sequence[Sequence[int]]) -> Iterator[Row]:
    """Yield the best pipelines of all devices, with more and more codecs."""
    found: list[tuple[Stage, ...]] = []
    for count, codec in enumerate(CODECS, 1):
        best = op_fence(case.chain, case.network, codec, case.work.batch, case.seed)
        found += [placement.stages for placement in best]
        plans = [plan_of(case.chain, case.network, stages, CODECS[:count]) for stages in found]
        plan = fastest(plans, case.work)
        if plan is not None:
            name = "OP-Fence" if codec is NONE else f"OP-Fence, {codec.name}"
            yield pipeline_row(name, case, plan, fences)


def _alone(case: Case, fences: Sequence[Sequence[int]]) -> Iterator[Alone]:
    """Yield the fences that can hold the chain by themselves."""
    for fence in fences:
        own = case.part(fence)
        best = op_fence(own.chain, own.network, NONE, own.work.batch, own.seed)
        plans = [plan_of(own.chain, own.network, placement.stages) for placement in best]
        plan = fastest(plans, own.work)
        if plan is not None:
            yield Alone(fence, plan)


def _best_set(
    case: Case, alone: Sequence[Alone], row_of: Callable[[Alone, Sequence[Alone]], Row]
) -> Row:
    """Return the best row of a home and one, two, ... of the fences that are near to it."""

    def rows() -> Iterator[Row]:
        for home in alone:
            others = sorted(
                (own for own in alone if own is not home),
                key=lambda own: _exchanging(case, home, own),
            )
            for count in range(1, len(others) + 1):
                yield row_of(home, others[:count])

    return min(rows(), key=lambda row: row.seconds)


def _replicas(case: Case, home: Alone, others: Sequence[Alone]) -> Row:
    """Return the row of pipelines that all do a part of the work, and exchange gradients.

    Sums and versions cross as they are, as in runs: nothing that accumulates is coded.
    """
    work = case.work
    plans = [home.plan, *(own.plan for own in others)]
    dealt = _dealt(work.num_samples, [plan.estimate(work) for plan in plans])
    computing = max(
        plan.seconds(work.of(number)) for plan, number in zip(plans, dealt, strict=True) if number
    )
    exchanging = max(_exchanging(case, home, own) for own in others)
    crossing = len(others) * (case.sum_bytes + case.version_bytes)
    num_devices = sum(len(plan.stages) for plan in plans)
    return Row("replicas", computing + exchanging, num_devices, crossing, "gradients, versions")


def _far_rollout(case: Case, home: Alone, others: Sequence[Alone]) -> Row:
    """Return the row in which one fence trains and others generate, a version behind or more.

    Versions and trajectories cross while both go on.
    """
    work, version = case.work, case.version_bytes
    dealt = _dealt(work.num_samples, [own.plan.generation(work) for own in others])
    seconds = [home.plan.training(work)]
    for own, number in zip(others, dealt, strict=True):
        trajectories = number * case.trajectory_bytes
        seconds += [
            own.plan.generation(work.of(number)) if number else 0.0,
            _seconds(case.network, home.fence, own.fence, version),
            _seconds(case.network, own.fence, home.fence, trajectories),
        ]
    return Row(
        "one trains, others generate",
        max(seconds),
        sum(len(own.plan.stages) for own in (home, *others)),
        len(others) * version + work.num_samples * case.trajectory_bytes,
        "versions, trajectories",
    )


def _dealt(num_samples: int, seconds: Sequence[float]) -> list[int]:
    """Deal samples to those who take so many seconds for all, so that they take equally long."""
    until = np.cumsum(1 / np.array(seconds))
    edges = np.round(num_samples * until / until[-1]).astype(int)
    return [int(number) for number in np.diff(edges, prepend=0)]


def _exchanging(case: Case, home: Alone, own: Alone) -> float:
    """Return the seconds of a sum of gradients to the home, and of a version back."""
    there = _seconds(case.network, own.fence, home.fence, case.sum_bytes)
    return there + _seconds(case.network, home.fence, own.fence, case.version_bytes)


def _seconds(
    network: Network, sources: Sequence[int], devices: Sequence[int], num_bytes: float
) -> float:
    """Return the seconds of bytes from one fence to another, over the best link."""
    return min(network.seconds(one, other, num_bytes) for one in sources for other in devices)
