"""A round: the prompts of one iteration, and how it ended."""

from dataclasses import dataclass

from digen_core.config.rollout import is_of_candidates
from digen_core.data.prompts import Prompt

MAX_FRAGMENTS = 1 << 16  # of a group


@dataclass(frozen=True, slots=True)
class Round:
    """The prompts of one iteration."""

    index: int
    prompts: list[Prompt]  # of its N groups, then of those that may take their place
    refill: int = 0  # times that a group may be replaced
    is_screened: bool = False  # every other N are of candidates, which samples take the place of

    @property
    def num_groups(self) -> int:
        """Groups that the iteration begins and ends with (N)."""
        return len(self.prompts) // ((1 + self.refill) * (1 + self.is_screened))

    def screens(self, group: int) -> bool:
        """Say whether a group is one of candidates."""
        return self.is_screened and is_of_candidates(group, self.num_groups)

    def samples_of(self, group: int) -> int:
        """Return the group of the samples that stand for some of a group's candidates."""
        return group + self.num_groups

    def successor_of(self, group: int) -> int | None:
        """Return the group that takes the place of one without signal; None if there is none."""
        successor = group + self.num_groups
        return successor if successor < len(self.prompts) else None

    def priority_of(self, group: int, fragment: int = 0) -> int:
        """Return the priority of a fragment: earlier ones first, all after training.

        So a device that has two ends the one that it began. Samples come before the next prompt's
        candidates.
        """
        place = self.index * len(self.prompts) + self._place_of(group)
        return -(place + 1) * MAX_FRAGMENTS - fragment

    def _place_of(self, group: int) -> int:
        """Return the place of a group among those that were drawn."""
        if not self.is_screened:
            return group
        kind, slot = divmod(group, self.num_groups)  # of candidates, of samples, in turn
        return 2 * (kind // 2 * self.num_groups + slot) + kind % 2


@dataclass(frozen=True, slots=True)
class Ended:
    """How an iteration ended."""

    version: int  # after it
    seconds: float  # since the devices were free for it
    price_per_second: float = 0.0  # of the devices, then
    spent: float = 0.0  # on them, until then
