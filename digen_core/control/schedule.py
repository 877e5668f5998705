"""What a controller is told before it starts: the shape of an iteration, and how to schedule it."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from math import ceil
from statistics import fmean
from typing import Final, Literal, TypeVar, get_args

from digen_core.config.rollout import full_fragments, is_of_candidates
from digen_core.config.train import DealtBy, dealt_units
from digen_core.control.layout import Layout

LATE: Final = 1.5
"""Times as long as predicted: of steps, from when their batch may go on elsewhere."""

QUEUE_DEPTH: Final = 2
"""Of runs: a device finds its next task waiting, and what that needs on its way."""

Steps = TypeVar("Steps", int, float)

GroupOrder = Literal["listed", "cheap-first", "dear-first"]


@dataclass(frozen=True, slots=True)
class Mixing:
    """How groups of unequal costs are generated (StreamRL's skewness-aware dispatch).

    Cheap groups first, and trainers get pairs early; dear ones first, and no long one is left for
    the end. Smaller fragments let several devices share a dear group, but each has a fixed cost.
    """

    order: GroupOrder = "listed"
    cuts: bool = False  # fragments of fewer samples where a sample costs more than the mean


UNMIXED: Final = Mixing()


@dataclass(frozen=True)
class Deal:
    """Which of an iteration's updates trains which of its samples.

    A group that takes the place of another one is dealt as that one.
    """

    num_updates: int = 1
    updates: tuple[tuple[tuple[int, ...], ...], ...] = ()
    """By group and place among the group's trained samples: the updates that train it, one of each
    epoch, ascending. None: there is one update, of all."""

    @classmethod
    def of(
        cls,
        orders: Sequence[Sequence[int]],
        num_updates: int,
        num_groups: int,
        trained_per_group: int,
    ) -> "Deal":
        """Deal the samples of an iteration to its updates, in equal shares.

        Args:
            orders: what is dealt, groups or samples, in the order of each epoch: permutations of
                their numbers. Samples count group after group.
            num_updates: of the iteration; each epoch has as many of them.
            num_groups: of the iteration.
            trained_per_group: samples.
        """
        if num_updates == 1:
            return cls()
        in_epoch, total = num_updates // len(orders), len(orders[0])
        dealt: list[tuple[int, ...]] = [()] * total
        for epoch, order in enumerate(orders):
            for position, unit in enumerate(order):
                dealt[unit] += (epoch * in_epoch + position * in_epoch // total,)
        num_samples = num_groups * trained_per_group
        found = [updates for updates in dealt for _ in range(num_samples // total)]
        starts = range(0, num_samples, trained_per_group)
        return cls(num_updates, tuple(tuple(found[at : at + trained_per_group]) for at in starts))

    @property
    def epochs(self) -> int:
        """How often each sample is trained."""
        return len(self.updates[0][0]) if self.updates else 1

    def epoch_of(self, update: int) -> int:
        """Return the epoch of an update."""
        return update * self.epochs // self.num_updates

    def updates_of(self, group: int, place: int) -> tuple[int, ...]:
        """Return the updates that train a sample, by its place among its group's trained ones."""
        return self.updates[group % len(self.updates)][place] if self.updates else (0,)

    def trains(self, update: int, group: int) -> bool:
        """Say whether an update trains samples of a group."""
        return not self.updates or group % len(self.updates) in self._groups[update]

    @cached_property
    def _groups(self) -> list[set[int]]:
        """The groups of each update."""
        found: list[set[int]] = [set() for _ in range(self.num_updates)]
        for group, samples in enumerate(self.updates):
            for own in samples:
                for update in own:
                    found[update].add(group)
        return found


WHOLE: Final = Deal()

OwnSteps = tuple[tuple[tuple[int, ...], ...], ...]
"""By group and sample the steps that it trains, as many for each of a group, where not all train
those of the iteration. Of a group whose samples train others in each epoch, those of all its
samples in the first epoch, then those in the second, and so on."""


def own_steps_in(
    own: tuple[tuple[int, ...], ...], group_size: int, epoch: int
) -> tuple[tuple[int, ...], ...]:
    """Return the steps that each sample of a group trains in an epoch; empty if it has no own."""
    first = epoch * group_size if len(own) > group_size else 0
    return own[first : first + group_size]


def num_trained_steps(trained_steps: Sequence[int], own_steps: OwnSteps) -> float:
    """Return the trained steps of a sample, in the mean of all groups: the iteration's, or own."""
    return fmean(len(own[0]) for own in own_steps) if own_steps else len(trained_steps)


@dataclass(frozen=True, slots=True)
class Screening:
    """Candidates of each group that are generated and scored before it: the group's samples."""

    num_candidates: int
    num_steps: int | None = None  # of each, at most the samples'; None: as many


@dataclass(frozen=True, slots=True)
class Workload:
    """The shape of an iteration.

    With screening groups g of candidates come first, each of which group g + N takes the place of.
    """

    num_groups: int
    group_size: int
    fragment_size: int
    num_steps: int  # of a trajectory; the most, where groups have their own
    pack_size: int  # most pairs in one pack
    trained_per_group: int  # samples; fewer than group_size with best-of-n
    samples_per_pack: int = 1  # without TSP: most samples in one pack, all at the same step
    advantages_need_all_groups: bool = False  # scaled by the deviation of the whole batch
    group_costs: tuple[float, ...] = ()  # as offered with a typical iteration; none: all cost 1
    group_steps: tuple[int, ...] = ()  # likewise, of trajectories; none: all have num_steps
    group_trained: tuple[int, ...] = ()  # of those the trained ones, where groups have their own
    num_updates: int = 1  # of an iteration
    epochs: int = 1  # times that each sample is trained in them
    dealt_by: DealtBy = "groups"
    screening: Screening | None = None  # None: there are no candidates
    batch_size: int = 1  # samples denoised together: whole fragments, no more; at least one

    @property
    def fragments_per_batch(self) -> int:
        """Most fragments that are denoised together."""
        return full_fragments(self.batch_size, self.fragment_size)

    def screens(self, group: int) -> bool:
        """Say whether a group is one of candidates."""
        return self.screening is not None and is_of_candidates(group, self.num_groups)

    def size_of(self, group: int) -> int:
        """Return the samples of a group, or its candidates."""
        if self.screening is not None and self.screens(group):
            return self.screening.num_candidates
        return self.group_size

    def steps_of(self, group: int, num_steps: Steps) -> Steps | int:
        """Return the steps of a group's trajectories, of which samples would have so many."""
        if self.screening is not None and self.screens(group):
            return min(self.screening.num_steps or num_steps, num_steps)
        return num_steps

    @property
    def kinds_of_groups(self) -> tuple[int, ...]:
        """A group of each kind that every prompt has: of candidates, if any, and of samples."""
        return (0,) if self.screening is None else (0, self.num_groups)

    @property
    def dealt_units(self) -> int:
        """Groups, or trained samples, that each epoch deals to its updates."""
        return dealt_units(self.dealt_by, self.num_groups, self.trained_per_group)

    def deal(self, orders: Sequence[Sequence[int]]) -> Deal:
        """Return what ``Deal.of`` does for an iteration of this shape."""
        return Deal.of(orders, self.num_updates, self.num_groups, self.trained_per_group)

    @property
    def num_fragments(self) -> int:
        """Fragments of an iteration; the last one of a group may be smaller."""
        sizes = map(self.size_of, self.kinds_of_groups)
        return self.num_groups * sum(ceil(size / self.fragment_size) for size in sizes)

    @property
    def mean_steps(self) -> float:
        """Steps of a trajectory, in the mean of the groups."""
        return fmean(self.group_steps) if self.group_steps else self.num_steps

    @property
    def num_scored(self) -> int:
        """Samples and candidates of an iteration."""
        return self.num_groups * sum(map(self.size_of, self.kinds_of_groups))

    def num_pairs(self, num_trained_steps: float) -> int:
        """Return the pairs of an iteration, those of all epochs.

        Args:
            num_trained_steps: of a trajectory, where groups do not have their own.
        """
        steps = sum(self.group_trained) or self.num_groups * num_trained_steps
        return round(steps * self.trained_per_group * self.epochs)


@dataclass(frozen=True, slots=True)
class StaleGroups:
    """Groups of an iteration that begin on an older version than it begins to train."""

    number: int
    iterations: int  # that the oldest of these versions is behind


@dataclass(frozen=True, slots=True)
class Schedule:
    """A layout and its quantities. ``None`` lets the controller choose by predicted makespan."""

    layout: Layout
    max_stale_share: float = 0.0  # of the groups of an iteration
    max_staleness: int = 1  # iterations between the one of the version and its own
    helpers: int | None = None  # trainers that may generate
    assistants: int | None = None  # rollout devices that may train
    queue_depth: int = 1  # tasks of a device that are issued before it is free
    pulls_at_once: int | None = None  # devices that pull a version from one other
    copies_state: bool = False  # to a standby, each version of the optimizer's

    @property
    def num_ahead(self) -> int:
        """Iterations that may be open beside the one that is trained."""
        return self.max_staleness if self.max_stale_share else 0

    def stale_limit(self, num_groups: int) -> StaleGroups:
        """Return how much of an iteration may be stale."""
        return StaleGroups(int(self.max_stale_share * num_groups + 1e-9), self.max_staleness)


def adapted_limit(
    now: StaleGroups,
    most: StaleGroups,
    *,
    began: StaleGroups,
    clipped: float | None,
    max_clipped: float,
) -> StaleGroups:
    """Return how much may be stale from now on: additive increase, multiplicative decrease.

    Where too many pairs of stale groups were clipped, as those teach nothing, the next ones are on
    versions that are one iteration younger than the oldest of these; where that was the version
    before, half as many groups begin on it. Where devices that had nothing else to do began all
    that they were let, one group more may be stale; if all may, by one iteration more. Two
    iterations that began with as much say the same, so what is heard late does not count twice.

    Args:
        now: how much may be.
        most: that may ever be.
        began: stale groups of the iteration that was trained last, and the iterations that the
            oldest of their versions was behind.
        clipped: share of their pairs that were clipped; None: there were none.
        max_clipped: the largest such share that is wanted.
    """
    if clipped is not None and clipped > max_clipped:
        if began.iterations > 1:
            return replace(now, iterations=min(now.iterations, began.iterations - 1))
        return replace(now, number=min(now.number, began.number // 2))
    if began.number < now.number:
        return now
    if now.number < most.number:
        return replace(now, number=now.number + 1)
    used = began.iterations >= now.iterations
    return replace(now, iterations=min(now.iterations + used, most.iterations))


def prompts_together(num_prompts: int, num_devices: int) -> int:
    """Return how many prompts devices embed in one task, if they share them equally.

    It keeps a device from other work while it runs, so these are eight at most.
    """
    return max(1, min(8, ceil(num_prompts / num_devices)))


def mixings(workload: Workload) -> list[Mixing]:
    """Return the ways to generate groups that cost differently, the simplest first."""
    if not (workload.group_costs or workload.group_steps):
        return [UNMIXED]
    return [Mixing(order, cuts) for cuts, order in product((False, True), get_args(GroupOrder))]


def generation_costs(group_costs: Sequence[float], group_steps: Sequence[int]) -> tuple[float, ...]:
    """Return what it takes to generate a sample of each group; none where all take the same.

    Args:
        group_costs: of a step of a sample of each group; none: all cost the same.
        group_steps: of trajectories of each group; none: all have as many.
    """
    if not group_steps:
        return tuple(group_costs)
    costs = group_costs or [1.0] * len(group_steps)
    return relative_costs(cost * steps for cost, steps in zip(costs, group_steps, strict=True))


def relative_costs(costs: Iterable[float]) -> tuple[float, ...]:
    """Return what groups cost, in the mean of them; none where all cost the same."""
    own = list(costs)
    if len(set(own)) < 2:
        return ()
    mean = fmean(own)
    return tuple(cost / mean for cost in own)
