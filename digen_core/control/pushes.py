"""Pushes: which device loads which version, and from which other one it pulls it.

Whoever has loaded a version is a source of it. Where the bytes decide (all weights), a source
serves one device at a time, so the number of sources doubles with each round, and one that joins
pulls from a device that generates rather than from the holder, which trains.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from digen_core.control.fleet import Fleet
from digen_core.control.protocol import Push


@dataclass(frozen=True, slots=True)
class PushesSnapshot:
    """Pushes as plain data."""

    waiting: tuple[tuple[int, str, str], ...]  # version, device, and a source that failed it, or ""
    under_way: tuple[Push, ...]


class Pushes:
    """The pushes that are under way, and those that wait for a source."""

    def __init__(self, fleet: Fleet, pulls_at_once: int | None) -> None:
        """Begin without any.

        Args:
            fleet: of the controller.
            pulls_at_once: devices that a source serves; None: any number.
        """
        self._fleet = fleet
        self._most = pulls_at_once
        self._waiting: list[tuple[int, str, str]] = []
        self._under_way: dict[tuple[int, str], str] = {}  # the source by version and device

    def restore(self, snapshot: PushesSnapshot) -> None:
        """Go on from where others were."""
        self._waiting = list(snapshot.waiting)
        self._under_way = {(do.version, do.device): do.source for do in snapshot.under_way}

    def snapshot(self) -> PushesSnapshot:
        """Return what it would take to go on from here."""
        return PushesSnapshot(
            tuple(self._waiting),
            tuple(Push(version, name, own) for (version, name), own in self._under_way.items()),
        )

    def ask(self, version: int, devices: Collection[str]) -> None:
        """Have devices load a version, in order, unless they are about to."""
        asked = {(own, name) for own, name, _ in self._waiting} | self._under_way.keys()
        self._waiting += [(version, name, "") for name in devices if (version, name) not in asked]

    def loaded(self, version: int, device: str) -> bool:
        """Note that a device holds a version; say whether it was asked to."""
        return self._under_way.pop((version, device), None) is not None

    def failed(self, version: int, device: str, source: str) -> bool:
        """Ask another source, if there is one; say whether this one was asked."""
        if self._under_way.get((version, device)) != source:
            return False
        del self._under_way[version, device]
        self._waiting.insert(0, (version, device, source))
        return True

    def lose(self, devices: Collection[str]) -> None:
        """Forget the pushes to devices that are gone; those from them fail by themselves."""
        self._waiting = [own for own in self._waiting if own[1] not in devices]
        self._under_way = {at: own for at, own in self._under_way.items() if at[1] not in devices}

    def begin(self, newest: int, begun: Collection[int]) -> Iterator[Push]:
        """Yield the pushes for which there is a source now; what nobody needs is not pushed.

        Args:
            newest: version, which the holder has made even if it has not loaded it.
            begun: older versions that work may name.
        """
        still: list[tuple[int, str, str]] = []
        for version, device, failed in self._waiting:
            if version != newest and version not in begun:
                continue
            sources = self._sources(version, newest)
            if device in sources and device == self._fleet.holder:
                found: str | None = device
            else:
                found = self._free(sources, failed)
            if found is None:
                still.append((version, device, failed))
                continue
            self._under_way[version, device] = found
            yield Push(version, device, found)
        self._waiting = still

    def _sources(self, version: int, newest: int) -> list[str]:
        """Return the devices that hold a version, the holder last."""
        holder = self._fleet.holder
        found = [d.name for d in self._fleet if version in d.loaded and d.name != holder]
        if version == newest or version in self._fleet[holder].loaded:
            found.append(holder)
        return found

    def _free(self, sources: list[str], failed: str) -> str | None:
        """Return the source that serves the fewest; None: all serve as many as they may.

        One that failed is asked again only if it is the only one.
        """
        serving = dict.fromkeys([own for own in sources if own != failed] or sources, 0)
        for (_, device), source in self._under_way.items():
            if source in serving and device != source:
                serving[source] += 1
        free = [own for own in serving if self._most is None or serving[own] < self._most]
        return min(free, key=serving.__getitem__, default=None)
