"""Runs of blocks: which of them each stage of a gang has.

Importing this module must not import torch.
"""

from collections.abc import Sequence
from functools import cache
from itertools import pairwise


def runs_of(sizes: Sequence[int], stages: int, stage_blocks: Sequence[int] = ()) -> list[range]:
    """Return the blocks of each stage of a gang: those that the config says, or else equal parts.

    Args:
        sizes: of each block, in bytes.
        stages: at most as many as there are blocks.
        stage_blocks: how many each has; empty: equal parts.
    """
    ends = [sum(stage_blocks[: n + 1]) for n in range(len(stage_blocks))]
    if not ends:
        ends = list(_equal(tuple(sizes), stages))
    return [range(first, end) for first, end in pairwise([0, *ends])]


def _equal(sizes: tuple[int, ...], stages: int) -> tuple[int, ...]:
    """Return the ends of runs of which the largest is as small as can be."""

    @cache
    def best(end: int, count: int) -> tuple[int, tuple[int, ...]]:
        if count == 1:
            return sum(sizes[:end]), (end,)
        found = []
        for start in range(count - 1, end):
            most, ends = best(start, count - 1)
            found.append((max(most, sum(sizes[start:end])), (*ends, end)))
        return min(found)

    return best(len(sizes), stages)[1]
