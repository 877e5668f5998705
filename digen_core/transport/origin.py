"""The origin of samples: whose noise they start from, and are moved by."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self


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

    def to_kept(self) -> dict[str, list[int]]:
        """Return it as files keep it: `from_kept` takes that."""
        return {"group": list(self.group), "samples": list(self.samples)}

    @classmethod
    def from_kept(cls, kept: Mapping[str, Any] | None) -> Self | None:
        """Return the origin that a file keeps; None: samples have their own noise."""
        return None if kept is None else cls(tuple(kept["group"]), tuple(kept["samples"]))
