"""Versions on their way: which device loads which one, and who has a copy of the train state.

Whoever has loaded a version is a source of it. Where the bytes decide (all weights), a source
serves one device at a time, so the number of sources doubles with each round, and one that joins
pulls from a device that generates rather than from the holder, which trains. Between sites a
version crosses once: the others there wait for the device that pulls it from afar.

The holder, the first of the trainers, has the state that the optimizer steps. The standby, the
second one, has a copy of it, so that it can take the holder's place.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from itertools import islice

from digen_core.control.devices.device_state import DeviceState
from digen_core.control.devices.fleet import Fleet
from digen_core.control.protocol import CopyState, Push


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

    def involve(self, device: str) -> bool:
        """Say whether a device loads a version or gives one away; of the holder: any device."""
        pushes = self._under_way.items()
        return bool(pushes) and (
            device == self._fleet.holder or any(device in (to, own) for (_, to), own in pushes)
        )

    def lose(self, devices: Collection[str]) -> None:
        """Forget the pushes to devices that are gone; those from them fail by themselves.

        But with the holder all do: what names a version was there.
        """
        if self._fleet.holder in devices:
            under_way = [(version, name, "") for version, name in self._under_way]
            self._waiting, self._under_way = under_way + self._waiting, {}
        self._waiting = [own for own in self._waiting if own[1] not in devices]
        self._under_way = {at: own for at, own in self._under_way.items() if at[1] not in devices}

    def begin(self, newest: int, begun: Collection[int]) -> Iterator[Push]:
        """Yield the pushes for which there is a source now; what nobody needs is not pushed.

        Args:
            newest: version, which the holder has made even if it has not loaded it.
            begun: older versions that work may name.
        """
        still: list[tuple[int, str, str]] = []
        waiting: set[str] = set()  # devices: each is to load versions in order
        for version, device, failed in self._waiting:
            if version != newest and version not in begun:
                continue
            if device in waiting:
                still.append((version, device, failed))
                continue
            sources = self._sources(version, newest)
            if device in sources and device == self._fleet.holder:
                found: str | None = device
            else:
                found = self._free(self._near(version, device, sources, failed), failed)
            if found is None:
                still.append((version, device, failed))
                waiting.add(device)
                continue
            self._under_way[version, device] = found
            yield Push(version, device, found)
        self._waiting = still

    def _sources(self, version: int, newest: int) -> list[str]:
        """Return the devices that hold a version, the holder last."""
        holder = self._fleet.holder
        found = [d.name for d in self._fleet if version in d.loaded and d.name != holder]
        state = self._fleet[holder]
        if version == newest or version in state.loaded | state.copied:
            found.append(holder)
        return found

    def _near(self, version: int, device: str, sources: list[str], failed: str) -> list[str]:
        """Return the sources at a device's site; all, if none is there or will soon be."""
        site = self._site(device)
        near = [own for own in sources if self._site(own) == site and own != failed]
        if near:
            return near
        crossing = (to for asked, to in self._under_way if asked == version)
        return [] if any(self._site(to) == site for to in crossing) else sources

    def _site(self, device: str) -> str:
        return self._fleet[device].device.site

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


@dataclass(frozen=True, slots=True)
class CopiesSnapshot:
    """Copies as plain data."""

    under_way: tuple[CopyState, ...]


class Copies:
    """The copies of the train state that the standby has (``DeviceState.copied``), or soon will."""

    def __init__(self, fleet: Fleet, *, are_made: bool) -> None:
        """Begin without any.

        Args:
            fleet: of the controller.
            are_made: False: there is no standby, as the state is too large.
        """
        self._fleet = fleet
        self._are_made = are_made
        self._under_way: list[CopyState] = []

    def restore(self, snapshot: CopiesSnapshot) -> None:
        """Go on from where others were."""
        self._under_way = list(snapshot.under_way)

    def snapshot(self) -> CopiesSnapshot:
        """Return what it would take to go on from here."""
        return CopiesSnapshot(tuple(self._under_way))

    def of(self, version: int) -> list[CopyState]:
        """Have the standby copy the state of a version, unless it has done so or is about to."""
        standby = self._standby()
        if standby is None or version in standby.copied:
            return []
        do = CopyState(version, standby.name, self._fleet.holder)
        if do in self._under_way:
            return []
        self._under_way.append(do)
        return [do]

    def made(self, version: int, device: str, oldest: int) -> bool:
        """Note a copy; say whether it was asked for.

        Args:
            version: whose state was copied.
            device: that has it.
            oldest: version whose state may be needed.
        """
        do = CopyState(version, device, self._fleet.holder)
        if do not in self._under_way:
            return False
        self._under_way.remove(do)
        state = self._fleet[device]
        state.copied = frozenset(own for own in state.copied | {version} if own >= oldest)
        return True

    def involve(self, device: str) -> bool:
        """Say whether a device copies a state, or gives one away."""
        return any(device in (do.device, do.source) for do in self._under_way)

    def can_follow(self) -> bool:
        """Say whether a second trainer can have the holder's state."""
        return self._second() is not None

    def lose(self, devices: Collection[str]) -> set[int]:
        """Forget the copies to and from devices that are gone; return the versions of those."""
        gone = [do for do in self._under_way if do.device in devices or do.source in devices]
        self._under_way = [do for do in self._under_way if do not in gone]
        return {do.version for do in gone}

    def survive(self, lost: Collection[str], versions: Collection[int]) -> bool:
        """Say whether somebody has the state of these versions when devices are lost."""
        if self._fleet.holder not in lost:
            return True
        left = (state for state in self._trainers() if state.name not in lost)
        return next((state.copied.issuperset(versions) for state in left), False)

    def _standby(self) -> DeviceState | None:
        """Return the second trainer, where copies are made: always for a holder that leaves."""
        is_needed = self._are_made or self._fleet[self._fleet.holder].leaving
        return self._second() if is_needed else None

    def _second(self) -> DeviceState | None:
        """Return the second trainer; None: a gang deals its state over its members."""
        first_two = list(islice(self._trainers(), 2))
        are_alone = all(state.device.size == 1 for state in first_two)
        return first_two[1] if are_alone and len(first_two) == 2 else None

    def _trainers(self) -> Iterator[DeviceState]:
        return (state for state in self._fleet if "trainer" in state.device.roles)
