"""Which fragments a device generates next, and with which version."""

import heapq
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from digen_core.control.protocol import Fragment
from digen_core.control.schedule import WHOLE, Deal, GroupOrder

Item = tuple[int, Fragment, int]  # place of its group, fragment, next step


@dataclass(frozen=True, slots=True)
class UsableVersions:
    """The versions on which work may begin now."""

    newest: int
    """Pairs are trained on it."""
    generating: tuple[int, ...]
    """Groups may begin on these: what the last iterations ended with, the oldest first. What an
    iteration's updates before its last one make is trained on alone."""

    @property
    def policy(self) -> int:
        """The newest that generates."""
        return self.generating[-1]

    def best_of(self, held: Collection[int]) -> int | None:
        """Return the newest one that generates among those that a device holds."""
        return next((own for own in reversed(self.generating) if own in held), None)

    def age_of(self, version: int) -> int:
        """Return how many that generate are newer than one of them."""
        return len(self.generating) - 1 - self.generating.index(version)


def group_order(
    num_groups: int, group_costs: Sequence[float], order: GroupOrder, deal: Deal = WHOLE
) -> tuple[int, ...]:
    """Return the groups in the order in which they are generated: those of the first update first.

    Args:
        num_groups: of the iteration.
        group_costs: to generate a sample of each; none: all cost the same.
        order: of the groups of an update.
        deal: of samples to updates.
    """
    sign = {"listed": 0, "cheap-first": 1, "dear-first": -1}[order if group_costs else "listed"]

    def key(group: int) -> tuple[int, float, int]:
        samples = deal.updates[group] if deal.updates else ()
        first = min((own[0] for own in samples), default=0)
        return first, sign * group_costs[group] if sign else 0.0, group

    return tuple(sorted(range(num_groups), key=key))


@dataclass
class GenerationQueue:
    """Fragments of one iteration that nobody generates, group-major: a group after the other.

    Groups begin in this order: no group that has begun comes after one that has not.
    """

    order: tuple[int, ...]
    #: Groups that others were put in the place of, by those.
    succeeded: dict[int, int] = field(default_factory=dict)
    versions: dict[int, int] = field(default_factory=dict)  # of groups that have begun
    stale: set[int] = field(default_factory=set)  # groups that began on an older version
    #: The fragments that wait, and the first step of each that is not done.
    _next_step: dict[Fragment, int] = field(default_factory=dict)
    #: The load that is left of the fragments that wait, at each of their steps.
    _load: float = 0.0
    #: The same fragments by the version of their group, None before it begins. An item whose step
    #: is not that of its fragment is void: it is dropped when it comes first.
    _heaps: dict[int | None, list[Item]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        #: The place of each group in the order, 0, 1, ..., or that of the one that it succeeds.
        self._place: dict[int, int] = {}
        for place, group in enumerate(self.order):
            self._place[group] = self._place.get(self.succeeded.get(group, group), place)

    def __len__(self) -> int:
        return len(self._next_step)

    def __contains__(self, fragment: Fragment) -> bool:
        return fragment in self._next_step

    @property
    def groups(self) -> tuple[int, ...]:
        """All groups that were let in, in the order in which they were."""
        return tuple(self._place)

    @property
    def waiting(self) -> tuple[tuple[Fragment, int], ...]:
        """The fragments that are in, sorted, and the first step of each that is not done."""
        return tuple(sorted(self._next_step.items()))

    def restart(self, fragment: Fragment) -> None:
        """Generate a fragment from its first step again, although some are done."""
        self._remove(fragment)
        self.add(fragment)

    def admit(self, group: int) -> None:
        """Let a group in that comes after all others."""
        self._place[group] = len(self._place)

    def succeed(self, old: int, new: int) -> None:
        """Let a group in that goes on in the place, and on the version, of one that has begun."""
        self.succeeded[new], self._place[new] = old, self._place[old]
        self.versions[new] = self.versions[old]
        if old in self.stale:
            self.stale.remove(old)
            self.stale.add(new)

    def add(self, fragment: Fragment, next_step: int = 0) -> None:
        """Put a fragment in whose steps before ``next_step`` are done."""
        self._next_step[fragment] = next_step
        self._load += (fragment.num_steps - next_step) * fragment.load
        heap = self._heaps.setdefault(self.versions.get(fragment.group), [])
        heapq.heappush(heap, (self._place[fragment.group], fragment, next_step))

    @property
    def load(self) -> float:
        """What is left: steps of samples of the mean size."""
        return self._load

    def offers(self, held: Collection[int], newest_to_begin: int) -> bool:
        """Say whether a device that holds these versions could generate something."""
        return self._first(held, newest_to_begin) is not None

    def take(
        self, held: Collection[int], newest_to_begin: int | None, *, is_stale: bool
    ) -> tuple[Fragment, int, int] | None:
        """Take the first fragment that a device can generate: (fragment, next step, version).

        Args:
            held: versions that the device holds. A group that has begun keeps its version.
            newest_to_begin: version that a new group would begin on; None: it may begin none.
            is_stale: whether that version is an older one.
        """
        item = self._first(held, newest_to_begin)
        if item is None:
            return None
        _, fragment, next_step = item
        self._remove(fragment)
        if fragment.group not in self.versions:
            assert newest_to_begin is not None
            self._begin(fragment.group, newest_to_begin)
            if is_stale:
                self.stale.add(fragment.group)
        return fragment, next_step, self.versions[fragment.group]

    def take_beside(
        self,
        fragment: Fragment,
        next_step: int,
        newest_to_begin: int | None,
        *,
        is_stale: bool,
        is_alike: Callable[[Fragment], bool],
    ) -> Fragment | None:
        """Take the fragment that comes next on another one's version, to be denoised with it.

        Args:
            fragment: that was taken.
            next_step: of it.
            newest_to_begin: version that a new group would begin on; None: it may begin none.
            is_stale: whether that version is an older one.
            is_alike: says whether it can be; if not, or if it is at another step, none is taken.
        """
        version = self.versions[fragment.group]
        item = self._first([version], newest_to_begin)
        if item is None or item[2] != next_step or not is_alike(item[1]):
            return None
        begin = newest_to_begin if newest_to_begin == version else None
        found = self.take([version], begin, is_stale=is_stale)
        assert found is not None
        return found[0]

    def _remove(self, fragment: Fragment) -> None:
        """Take a fragment out, which makes its item void."""
        self._load -= (fragment.num_steps - self._next_step.pop(fragment)) * fragment.load

    def _first(self, held: Collection[int], newest_to_begin: int | None) -> Item | None:
        """Return the first item of the groups of these versions, or that may begin on one."""
        heads = [self._head(version) for version in held]
        if newest_to_begin in held:
            heads.append(self._head(None))
        return min((item for item in heads if item is not None), default=None)

    def _head(self, version: int | None) -> Item | None:
        """Return the first item of a version that is not void."""
        heap = self._heaps.get(version)
        while heap:
            _, fragment, next_step = heap[0]
            if self._next_step.get(fragment) == next_step:
                return heap[0]
            heapq.heappop(heap)
        return None

    def _begin(self, group: int, version: int) -> None:
        """Let the first group that has not begun begin: its items lead their heap."""
        self.versions[group] = version
        waiting, begun = self._heaps[None], self._heaps.setdefault(version, [])
        while waiting and waiting[0][1].group == group:
            heapq.heappush(begun, heapq.heappop(waiting))

    def validate(self) -> None:
        """Raise AssertionError if what is kept up to date is not what it should be."""
        left = ((part.num_steps - step) * part.load for part, step in self._next_step.items())
        assert self._load == sum(left)
        items = {
            (version, fragment): next_step
            for version, heap in self._heaps.items()
            for _, fragment, next_step in heap
            if self._next_step.get(fragment) == next_step
        }
        assert items == {
            (self.versions.get(fragment.group), fragment): next_step
            for fragment, next_step in self._next_step.items()
        }
        begun = [self._place[group] for group in self.versions]
        others = [self._place[f.group] for f in self._next_step if f.group not in self.versions]
        assert max(begun, default=-1) < min(others, default=len(self._place))
