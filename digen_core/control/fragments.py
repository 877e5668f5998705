"""Fragments of a group: how its samples are cut into what is denoised, and scored, together."""

from math import ceil

from digen_core.control.protocol import Fragment
from digen_core.control.schedule import Workload


def fragments_of(
    workload: Workload,
    iteration: int,
    group: int,
    cost: float = 1.0,
    *,
    num_steps: int | None = None,
    dear: float = 1.0,
) -> tuple[Fragment, ...]:
    """Cut a group into fragments.

    Args:
        workload: with the samples of a group and those of a fragment.
        iteration: of the group.
        group: that is cut.
        cost: of a sample.
        num_steps: of the trajectories of its samples; None: as the workload says.
        dear: above 1, fragments have so many times fewer samples, if they have several.
    """
    size, whole = workload.fragment_size, workload.size_of(group)
    steps = workload.steps_of(group, workload.num_steps if num_steps is None else num_steps)
    if dear > 1:
        num_fragments = ceil(whole / max(1, int(size / dear)))
        size = ceil(whole / num_fragments)
    return tuple(
        Fragment(iteration, group, index, start, min(size, whole - start), cost, steps)
        for index, start in enumerate(range(0, whole, size))
    )


def rounded_cost(cost: float) -> float:
    """Round a cost to a multiple of 1/1024, of which sums are exact in whatever order."""
    return max(1.0, round(cost * 1024)) / 1024
