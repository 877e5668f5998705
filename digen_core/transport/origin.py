"""The origin of samples: whose noise they start from, and are moved by."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self


@dataclass(frozen=True, slots=True)
class Origin:
    """The names of the noise of some samples of a group, in their order.

    They are a sample's own, but for those of which candidates were chosen: their noise is that of
    the candidate that each stands for, so that it is generated again.
    """

    group: tuple[int, int]  # (iteration, index)
    samples: Sequence[int]  # indices in that group

    def part(self, rows: slice) -> Self:
        """Return that of some of the samples."""
        return type(self)(self.group, self.samples[rows])
