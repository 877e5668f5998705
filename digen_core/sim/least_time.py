"""The least time in which devices of several kinds do given work: a linear program."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import linprog


@dataclass(frozen=True, slots=True)
class Group:
    """Equal devices. Their times are in seconds."""

    num: int
    generation: float  # relative to the reference device
    pack: float  # the fixed part of a pack
    pair: float  # each pair of a pack
    wait: float = 0.0  # until they begin


@dataclass(frozen=True, slots=True)
class Work:
    """What all devices do together."""

    generation: float  # seconds of the reference device
    pairs: int = 0
    packs: int = 0  # the fewest that hold the pairs
    pack_size: int = 1
    step: float = 0.0  # seconds that any one device spends, whatever its kind


def least_seconds(groups: Sequence[Group], work: Work, *, pairs_from: float = 0.0) -> float:
    """Return the time by which the work can be done, if all of it may be divided at will.

    Kinds may differ in what they are better at, so who does what is a part of the answer. By hand:
    one device generates in 1 s and another in 2 s, both train in 1 s; then it is 1 s, for the first
    one generates and the second one trains.

    Args:
        groups: devices.
        work: to do.
        pairs_from: no pair is trained before, in seconds; 0 if there are no pairs.
    """
    waits = {group.wait for group in groups}  # those that wait longer may be too late for it
    return min(
        _solve([group for group in groups if group.wait <= wait], work, pairs_from)
        for wait in waits
    )


def _solve(groups: Sequence[Group], work: Work, pairs_from: float) -> float:
    """Return the least T, at which all devices have begun.

    The variables are T and, for each group, its generation until ``pairs_from`` and after, its
    pairs, its packs and its part of the step.
    """
    num = len(groups)
    before, after, pairs, packs, step = (1 + part * num + np.arange(num) for part in range(5))
    upper, most = np.zeros((3 * num + 1, 1 + 5 * num)), np.zeros(3 * num + 1)  # upper @ x <= most
    for place, group in enumerate(groups):
        upper[place, before[place]] = group.generation
        most[place] = group.num * max(0.0, pairs_from - group.wait)
        late = num + place
        upper[late, 0] = -group.num
        upper[late, after[place]] = group.generation
        upper[late, pairs[place]], upper[late, packs[place]] = group.pair, group.pack
        upper[late, step[place]] = work.step
        most[late] = -group.num * max(group.wait, pairs_from)
        full = 2 * num + place
        upper[full, pairs[place]], upper[full, packs[place]] = 1.0, -work.pack_size
    upper[-1, packs], most[-1] = -1.0, -work.packs
    equal, total = np.zeros((3, 1 + 5 * num)), np.array([work.generation, work.pairs, 1.0])
    equal[0, before] = equal[0, after] = equal[1, pairs] = equal[2, step] = 1.0
    seconds = np.eye(1 + 5 * num)[0]
    found = linprog(seconds, A_ub=upper, b_ub=most, A_eq=equal, b_eq=total, method="highs")
    assert found.success, found.message
    return float(found.fun)
