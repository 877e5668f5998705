"""Boxes that a detector found: which count, and how two of them lie to each other.

A box is (left, top, right, bottom) in pixels; y grows downwards.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from math import hypot

import numpy as np
from numpy.typing import NDArray

Box = tuple[float, float, float, float]


@dataclass(frozen=True, slots=True)
class Found:
    """An object in an image."""

    box: Box
    score: float  # how sure the detector is
    mask: NDArray[np.bool_] | None = field(default=None, compare=False, repr=False)  # [H, W]


def surest(
    found: Iterable[Found], *, above: float, most: int, max_overlap: float = 1.0
) -> list[Found]:
    """Return the objects that count, the surest first.

    Args:
        found: of one class.
        above: score that they exceed.
        most: of them; the surest are taken, before any is left out for its overlap.
        max_overlap: intersection over union from which the less sure one of two is left out; 1:
            none is.
    """
    ordered = sorted((one for one in found if one.score > above), key=lambda one: -one.score)
    kept: list[Found] = []
    for one in ordered[:most]:
        if max_overlap >= 1 or all(overlap(one.box, other.box) < max_overlap for other in kept):
            kept.append(one)
    return kept


def overlap(a: Box, b: Box) -> float:
    """Return the intersection over the union of two boxes, whose last pixels belong to them."""
    shared = _area((max(a[0], b[0]), max(a[1], b[1]), min(a[2], b[2]), min(a[3], b[3])))
    union = _area(a) + _area(b) - shared
    return shared / union if union else 0.0


def _area(box: Box) -> float:
    return max(box[2] - box[0] + 1, 0) * max(box[3] - box[1] + 1, 0)


def relations(a: Box, b: Box, slack: float) -> set[str]:
    """Return how box a lies to box b: at most one of left and right, and of above and below.

    The offset between their centres is shortened along each axis by ``slack`` times the sum of
    their extents there. A relation holds if that is then more than half of the whole offset's
    length.
    """
    x, x_left = _offset(a[0], a[2], b[0], b[2], slack)
    y, y_left = _offset(a[1], a[3], b[1], b[3], slack)
    if abs(x_left) < 1e-3 and abs(y_left) < 1e-3:
        return set()
    length = hypot(x, y)
    named = {
        "left of": -x_left / length,
        "right of": x_left / length,
        "above": -y_left / length,
        "below": y_left / length,
    }
    return {name for name, share in named.items() if share > 0.5}


def _offset(
    a_start: float, a_end: float, b_start: float, b_end: float, slack: float
) -> tuple[float, float]:
    """Return the offset between two centres along an axis, and what the slack leaves of it."""
    offset = (a_start + a_end - b_start - b_end) / 2
    left = abs(offset) - slack * (abs(a_end - a_start) + abs(b_end - b_start))
    return offset, max(left, 0.0) * (1 if offset > 0 else -1)
