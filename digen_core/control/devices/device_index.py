"""Devices by what the work that they may get depends on, and sums over them, kept up to date."""

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator
from heapq import heapify, heappop
from math import isclose
from typing import NamedTuple

from digen_core.control.devices.free_times import FreeTimes
from digen_core.control.protocol import Role

Order = tuple[float, int]  # of devices: (minus the speed of generation, number)


class Traits(NamedTuple):
    """What decides whether there is work for a device: all with the same ones are alike."""

    kind: str
    home: Role
    mode: Role
    num_queued: int
    loaded: frozenset[int]
    may_generate: bool
    may_train: bool
    is_holder: bool
    largest_pack: float | None
    has_packs: bool
    may_pause: bool
    is_leaving: bool
    pace: float


class Entry(NamedTuple):
    """How a device is filed."""

    place: tuple[Traits, Order] | None = None
    training: tuple[float, float] | None = (
        None  # free at, pairs per second; None: it does not train
    )
    under_way: tuple[int, float] | None = None  # iteration, half of the load of its steps


NOWHERE = Entry()


class DeviceIndex:
    """A device is filed by ``put``, again after each change, and forgotten by ``remove``."""

    def __init__(self) -> None:
        self._entries: dict[str, Entry] = {}
        #: The devices of the same traits, in order; no list is empty.
        self._alike: dict[Traits, list[tuple[float, int, str]]] = {}
        #: Those that are to leave.
        self.leaving: set[str] = set()
        #: Those that take longer than predicted.
        self.late: set[str] = set()
        #: When those that train are free.
        self.training = FreeTimes()
        #: Load of the steps under way, half of them done on average, by iteration; none is 0.
        self.under_way: dict[int, float] = {}

    def put(self, name: str, entry: Entry) -> None:
        """File a device, which may be filed already."""
        old = self._entries.get(name, NOWHERE)
        if entry != old:
            self._entries[name] = entry
            self._change(name, old, entry)

    def remove(self, name: str) -> None:
        """Forget a device."""
        self._change(name, self._entries.pop(name), NOWHERE)

    def _change(self, name: str, old: Entry, new: Entry) -> None:
        if new.place != old.place:
            self._unlist(name, old.place)
            self._list(name, new.place)
        if new.training != old.training:
            if old.training:
                self.training.remove(*old.training)
            if new.training:
                self.training.add(*new.training)
        if new.under_way != old.under_way:
            self._count(old.under_way, -1)
            self._count(new.under_way, 1)

    def _list(self, name: str, place: tuple[Traits, Order] | None) -> None:
        if place is not None:
            traits, order = place
            insort(self._alike.setdefault(traits, []), (*order, name))
            if traits.is_leaving:
                self.leaving.add(name)
            if traits.pace > 1:
                self.late.add(name)

    def _unlist(self, name: str, place: tuple[Traits, Order] | None) -> None:
        if place is not None:
            traits, order = place
            alike = self._alike[traits]
            del alike[bisect_left(alike, order)]
            if not alike:
                del self._alike[traits]
            if traits.is_leaving:
                self.leaving.remove(name)
            if traits.pace > 1:
                self.late.remove(name)

    def _count(self, under_way: tuple[int, float] | None, sign: int) -> None:
        if under_way is not None:
            iteration, load = under_way
            total = self.under_way.pop(iteration, 0.0) + sign * load
            if total:
                self.under_way[iteration] = total

    # --- questions ------------------------------------------------------------------------

    def traits_of(self, name: str) -> Traits:
        """Return the traits of a device."""
        place = self._entries[name].place
        assert place is not None
        return place[0]

    def traits(self) -> Iterable[Traits]:
        """Return all traits that there are."""
        return self._alike.keys()

    def staying(self) -> list[tuple[Traits, int]]:
        """Return the traits of devices that stay, and how many devices have them."""
        return [
            (traits, len(alike)) for traits, alike in self._alike.items() if not traits.is_leaving
        ]

    def names(self, has: Callable[[Traits], bool]) -> list[str]:
        """Return the devices whose traits are such."""
        return [name for traits, own in self._alike.items() if has(traits) for *_, name in own]

    def in_order(self, depth: int, after: Order | None) -> Iterator[str]:
        """Yield the first device of each traits that was told to do less than ``depth`` things.

        What is put meanwhile does not count.

        Args:
            depth: pieces of work.
            after: the place in the order that all come after; None: anywhere.
        """
        found: list[tuple[float, int, str]] = []
        for traits, alike in self._alike.items():
            if traits.num_queued >= depth or traits.is_leaving:
                continue
            place = bisect_left(alike, (after[0], after[1] + 1)) if after else 0
            if place < len(alike):
                found.append(alike[place])
        heapify(found)
        while found:
            yield heappop(found)[2]

    def validate(self, expected: "DeviceIndex") -> None:
        """Raise AssertionError where this is not what a new index of the same devices is."""
        assert self._entries == expected._entries, "a device was changed and not filed"
        assert self._alike == expected._alike
        assert self.leaving == expected.leaving
        assert self.late == expected.late
        assert self.under_way == expected.under_way
        assert len(self.training) == len(expected.training)
        for time in (0.0, 1.0, 1e6):
            own, theirs = (index.training.trained_by(time) for index in (self, expected))
            assert isclose(own, theirs, rel_tol=1e-6, abs_tol=1e-6)
