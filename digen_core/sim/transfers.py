"""Transfers of a simulation: what devices send each other from site to site, and when it arrives.

Each way of a link is a queue: what is asked for first crosses first, latency aside. A device
fetches what work needs when it is told to do it, whatever it does meanwhile, and keeps it for later
work, as Dask's workers do.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from digen_core.control.costs import Costs
from digen_core.control.protocol import Batch, Device, Fragment, Generate, Reduce, Train
from digen_core.control.schedule import prompts_together
from digen_core.records import Crossing
from digen_core.sim.clock import Clock

Piece = tuple[Fragment, int]
"""The transition of a fragment at a step; -1: the conditions that came with its prompt's."""

Shipment = tuple[Fragment | Batch, int]
"""What is sent for a piece: that of its whole batch."""

_CONDITION = -1


class Transfers:
    """What is where, and what is under way."""

    def __init__(self, costs: Costs, clock: Clock) -> None:
        self._links = {link.sites: link for link in costs.links}
        self._sent = costs.sent
        self._clock = clock
        self._sites: dict[str, str] = {}
        self._free: dict[tuple[str, str], float] = {}  # from, to -> when nothing is in the queue
        self._made: dict[Piece, tuple[str, Batch]] = {}  # -> who made it, with which
        self._encoded: dict[tuple[int, int], tuple[str, range]] = {}  # group -> by whom, with which
        self._arrivals = defaultdict[str, dict[Shipment, float]](dict)  # device -> what -> when
        self.crossings: list[Crossing] = []

    def add_device(self, device: Device) -> None:
        """A device is there."""
        self._sites[device.name] = device.site

    def lose_device(self, name: str) -> None:
        """A device is gone with what it had fetched."""
        self._arrivals.pop(name, None)

    def encode(self, iteration: int, num_groups: int, devices: Sequence[str]) -> None:
        """Devices embed the prompts of an iteration, some together, before it begins.

        Where there is none, whoever generates a group does.
        """
        if not (self._links and devices):
            return
        size = prompts_together(num_groups, len(devices))
        for place, first in enumerate(range(0, num_groups, size)):
            together = range(first, min(first + size, num_groups))
            for group in together:
                self._encoded[iteration, group] = devices[place % len(devices)], together

    def denoised(self, do: Generate, end_step: int) -> None:
        """A device did the steps of a batch up to ``end_step``."""
        if self._links:
            for fragment in do.batch.fragments:
                for step in range(do.first_step, end_step):
                    self._made[fragment, step] = do.device, do.batch

    def finish(self, iteration: int) -> None:
        """Nothing of this iteration is needed any more."""
        _drop(self._made, iteration)
        self._encoded = {at: own for at, own in self._encoded.items() if at[0] != iteration}
        for there in self._arrivals.values():
            _drop(there, iteration)

    def version(self, source: str, device: str) -> float:
        """Return when a version that a device begins to pull from another one is there."""
        return self._send(source, device, self._sent.crossing)

    def sums(self, do: Reduce, seconds: float) -> float:
        """Return when the sums of all trainers are one at the device that steps.

        Those of another site are added up there before they cross.

        Args:
            do: what is to be added up.
            seconds: that it takes to add one sum to another.
        """
        pulled, size = do.pulled(self._sites), self._sent.gradient_sum
        arrivals = (
            self._send(own[0], do.device, size, after=seconds * (len(own) - 1)) for own in pulled
        )
        return max(arrivals, default=self._clock.now) + seconds * len(pulled)

    def inputs(self, do: Generate | Train) -> float:
        """Return when a device has what it needs for work that it is told to do now."""
        if not self._links:
            return self._clock.now
        pieces = self._pieces(do)
        return max((self._fetch(piece, do.device) for piece in pieces), default=self._clock.now)

    def _pieces(self, do: Generate | Train) -> Iterator[Piece]:
        match do:
            case Generate(batch, first_step):
                for fragment in batch.fragments:
                    yield fragment, _CONDITION
                    if first_step:
                        yield fragment, first_step - 1
            case Train(pack):
                for fragment in dict.fromkeys(block.fragment for block in pack.blocks):
                    yield fragment, _CONDITION
                yield from dict.fromkeys((block.fragment, block.step) for block in pack.blocks)

    def _fetch(self, piece: Piece, device: str) -> float:
        fragment, step = piece
        if step == _CONDITION:
            alone = device, range(fragment.group, fragment.group + 1)
            at = fragment.iteration, fragment.group
            source, together = self._encoded.setdefault(at, alone)
            key: Shipment = Fragment(fragment.iteration, together.start, _CONDITION, 0, 0), step
            num_bytes = self._sent.condition * len(together)
        else:
            source, batch = self._made[piece]
            key = batch, step
            num_bytes = self._sent.transition * batch.num_samples
        there = self._arrivals[device]
        if key not in there:
            there[key] = self._send(source, device, num_bytes)
        return there[key]

    def _send(self, source: str, device: str, num_bytes: float, *, after: float = 0.0) -> float:
        """Put bytes in the queue of the link between two devices; return when they have arrived.

        Args:
            source: device that sends them.
            device: that receives them.
            num_bytes: how many.
            after: seconds from now until they are there to be sent; who asks meanwhile comes later.
        """
        now = self._clock.now + after
        way = self._sites[source], self._sites[device]
        link = self._links.get(frozenset(way))
        if link is None or way[0] == way[1]:
            return now
        started = max(now, self._free.get(way, 0.0))
        self._free[way] = started + num_bytes / link.bytes_per_second
        arrived = self._free[way] + link.latency
        self.crossings.append(Crossing(link.sites, num_bytes, started, arrived))
        return arrived


def _drop(held: dict[Any, Any], iteration: int) -> None:
    for piece in [own for own in held if own[0].iteration == iteration]:
        del held[piece]


def crossed(
    crossings: Iterable[Crossing], begin: float, end: float, num_iterations: int
) -> dict[frozenset[str], float]:
    """Return the bytes that cross each link in an iteration, by the sites that it is between."""
    found = defaultdict[frozenset[str], float](float)
    for own in crossings:
        if begin < own.ended <= end:
            found[own.sites] += own.num_bytes / num_iterations
    return dict(found)
