"""Which fragment a device generates next, and with which version."""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field

from digen_core.control.protocol import Fragment


def group_order(
    num_groups: int, group_costs: Sequence[float], *, trainer_bound: bool
) -> tuple[int, ...]:
    """Return the order in which groups are generated (StreamRL's skewness-aware dispatch).

    Cheap groups first when training is the bottleneck: trainers get pairs early. Dear groups first
    when generation is: no long one is left for the end.
    """
    if not group_costs:
        return tuple(range(num_groups))
    sign = 1 if trainer_bound else -1
    return tuple(sorted(range(num_groups), key=lambda group: (sign * group_costs[group], group)))


@dataclass
class GenerationQueue:
    """Fragments of one iteration that nobody generates, group-major: a group after the other."""

    order: tuple[int, ...]
    versions: dict[int, int] = field(default_factory=dict)  # of groups that have begun
    stale: set[int] = field(default_factory=set)  # groups that began on an older version
    _heap: list[tuple[int, Fragment, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._place = {group: place for place, group in enumerate(self.order)}

    def __len__(self) -> int:
        return len(self._heap)

    def __contains__(self, fragment: Fragment) -> bool:
        return any(item[1] == fragment for item in self._heap)

    def restart(self, fragment: Fragment) -> None:
        """Generate a fragment from its first step again, although some are done."""
        self._heap = [item for item in self._heap if item[1] != fragment]
        heapq.heapify(self._heap)
        self.add(fragment)

    def admit(self, group: int) -> None:
        """Let a group in that comes after all others."""
        self._place[group] = len(self._place)

    def add(self, fragment: Fragment, next_step: int = 0) -> None:
        """Put a fragment in whose steps before ``next_step`` are done."""
        heapq.heappush(self._heap, (self._place[fragment.group], fragment, next_step))

    def remaining_steps(self, num_steps: int) -> int:
        """Return how many steps of fragments are left."""
        return sum(num_steps - next_step for _, _, next_step in self._heap)

    def offers(self, held: set[int], newest_to_begin: int) -> bool:
        """Say whether a device that holds these versions could generate something."""
        return any(
            self.versions.get(fragment.group, newest_to_begin) in held
            for _, fragment, _ in self._heap
        )

    def take(
        self, held: set[int], newest_to_begin: int | None, *, is_stale: bool
    ) -> tuple[Fragment, int, int] | None:
        """Take the first fragment that a device can generate: (fragment, next step, version).

        Args:
            held: versions that the device holds. A group that has begun keeps its version.
            newest_to_begin: version that a new group would begin on; None: it may begin none.
            is_stale: whether that version is an older one.
        """
        passed, found = [], None
        while self._heap:
            item = heapq.heappop(self._heap)
            _, fragment, next_step = item
            version = self.versions.get(fragment.group)
            if version is None:
                if newest_to_begin is None:
                    passed.append(item)
                    break  # later groups have not begun either, or hold other versions
                version = newest_to_begin
            if version in held:
                found = (fragment, next_step, version)
                break
            passed.append(item)
        for item in passed:
            heapq.heappush(self._heap, item)
        if found is not None:
            self._begin(found[0].group, found[2], is_stale)
        return found

    def _begin(self, group: int, version: int, is_stale: bool) -> None:
        if group not in self.versions:
            self.versions[group] = version
            if is_stale:
                self.stale.add(group)
