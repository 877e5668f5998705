"""What a controller is told before it starts: the shape of an iteration, and how to schedule it."""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import product
from math import ceil
from statistics import fmean
from typing import Final, Literal, get_args

from digen_core.control.layout import Layout

QUEUE_DEPTH: Final = 2
"""Of runs: a device finds its next task waiting, and what that needs on its way."""

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


@dataclass(frozen=True, slots=True)
class Workload:
    """The shape of an iteration."""

    num_groups: int
    group_size: int
    fragment_size: int
    num_steps: int
    pack_size: int  # most pairs in one pack
    trained_per_group: int  # samples; fewer than group_size with best-of-n
    samples_per_pack: int = 1  # without TSP: most samples in one pack, all at the same step
    advantages_need_all_groups: bool = False  # scaled by the deviation of the whole batch
    group_costs: tuple[float, ...] = ()  # as offered with a typical iteration; none: all cost 1

    @property
    def num_fragments(self) -> int:
        """Fragments of an iteration; the last one of a group may be smaller."""
        return self.num_groups * ceil(self.group_size / self.fragment_size)


@dataclass(frozen=True, slots=True)
class Schedule:
    """A layout and its quantities. ``None`` lets the controller choose by predicted makespan."""

    layout: Layout
    max_stale_share: float = 0.0  # of the groups of an iteration
    max_staleness: int = 1  # versions between the one that generates and the one trained
    helpers: int | None = None  # trainers that may generate
    assistants: int | None = None  # rollout devices that may train
    queue_depth: int = 1  # tasks of a device that are issued before it is free
    pulls_at_once: int | None = None  # devices that pull a version from one other
    copies_state: bool = False  # to a standby, each version of the optimizer's

    @property
    def num_ahead(self) -> int:
        """Iterations that may be open beside the one that is trained."""
        return self.max_staleness if self.max_stale_share else 0


def mixings(workload: Workload) -> list[Mixing]:
    """Return the ways to generate groups that cost differently, the simplest first."""
    if not workload.group_costs:
        return [UNMIXED]
    return [Mixing(order, cuts) for cuts, order in product((False, True), get_args(GroupOrder))]


def relative_costs(costs: Iterable[float]) -> tuple[float, ...]:
    """Return what groups cost, in the mean of them; none where all cost the same."""
    own = list(costs)
    if len(set(own)) < 2:
        return ()
    mean = fmean(own)
    return tuple(cost / mean for cost in own)
