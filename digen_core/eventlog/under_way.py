"""The instructions of a run that were given and not answered, and since when."""

from collections.abc import Iterator
from typing import NamedTuple

from digen_core.control import protocol as p
from digen_core.control.protocol import Batch, Event, Fragment, Instruction
from digen_core.eventlog.entries import Asked, Handled, Mark, Segment


class Subject(NamedTuple):
    """What an answer names: the kind of the instruction, and what that one is about."""

    kind: type
    about: Batch | Fragment | tuple[object, ...]


class UnderWay:
    """The instructions that were given and not answered: fed by entries, in order."""

    def __init__(self, mark: Mark) -> None:
        #: By subject, no list is empty; of several the first given is answered first.
        self._asked: dict[Subject, list[Asked]] = {}
        for one in mark.under_way:
            self._add(one)
        states = mark.snapshot.fleet.devices
        #: In the order in which they came: the first holds the optimizer's state.
        self._trainers = [own.name for own in states if "trainer" in own.device.roles]

    def __iter__(self) -> Iterator[Asked]:
        every = (one for alike in self._asked.values() for one in alike)
        return iter(sorted(every, key=lambda one: one.time))

    def take(self, handled: Handled) -> list[Asked]:
        """Go on by an entry; return what its event answered, or lost with its devices."""
        match handled.event:
            case p.DevicesLost(devices):
                ended = self._lost_with(devices)
            case p.GroupsReplaced(iteration, groups):
                ended = self._asked_about(iteration, {old for old, _ in groups})
            case event:
                ended = [self._remove(s) for s in answered_by(event) if s in self._asked]
        if isinstance(handled.event, p.DeviceJoined) and "trainer" in handled.event.device.roles:
            self._trainers.append(handled.event.device.name)
        for instruction in handled.instructions:
            match instruction:
                case p.Release(name):
                    self._trainers = [own for own in self._trainers if own != name]
                case p.FinishIteration():
                    pass
                case _:
                    self._add(Asked(handled.time, instruction))
        return ended

    def _lost_with(self, devices: tuple[str, ...]) -> list[Asked]:
        """Remove what is never answered, as devices are lost: with the holder, all pushes."""
        was_holder = any(own in devices for own in self._trainers[:1])
        self._trainers = [own for own in self._trainers if own not in devices]
        lost = [
            one
            for one in self
            if (was_holder and isinstance(one.instruction, p.Push))
            or _is_lost(one.instruction, devices)
        ]
        for one in lost:
            self._remove(subject_of(one.instruction), one)
        return lost

    def _asked_about(self, iteration: int, groups: set[int]) -> list[Asked]:
        """Remove the question for advantages of which some groups were replaced."""
        asked = [
            subject
            for subject, (one, *_) in self._asked.items()
            if isinstance(do := one.instruction, p.ComputeAdvantages)
            and do.iteration == iteration
            and groups.intersection(do.groups)
        ]
        return [self._remove(subject) for subject in asked]

    def _add(self, one: Asked) -> None:
        self._asked.setdefault(subject_of(one.instruction), []).append(one)

    def _remove(self, subject: Subject, one: Asked | None = None) -> Asked:
        alike = self._asked[subject]
        ended = alike.pop(0 if one is None else alike.index(one))
        if not alike:
            del self._asked[subject]
        return ended


def _is_lost(do: Instruction, devices: tuple[str, ...]) -> bool:
    """Say whether an instruction needs devices that are lost."""
    match do:
        case p.CopyState(source=source):
            needed = {do.device, source}
        case p.Reduce(devices=others):
            needed = {do.device, *others}
        case _:
            needed = {getattr(do, "device", "")}
    return not needed.isdisjoint(devices)


def after(segment: Segment) -> UnderWay:
    """Return what is under way at the end of a segment."""
    found = UnderWay(segment.mark)
    for handled in segment.handled:
        found.take(handled)
    return found


def subject_of(do: Instruction) -> Subject:  # noqa: C901 - a row for each kind
    """Return what an instruction is about."""
    match do:
        case p.Generate(batch) | p.Pause(batch):
            return Subject(type(do), batch)
        case p.Score(fragment):
            return Subject(p.Score, fragment)
        case p.Train(pack):
            return Subject(p.Train, (pack.iteration, pack.index))
        case p.ComputeAdvantages(iteration, groups):
            return Subject(p.ComputeAdvantages, (iteration, groups))
        case p.Step(_, version):
            return Subject(p.Step, (version + 1,))
        case p.Push(version, device, _) | p.CopyState(version, device, _):
            return Subject(type(do), (device, version))
        case p.Switch(device, role):
            return Subject(p.Switch, (device, role))
        case p.Release(device):
            return Subject(p.Release, (device,))
        case p.Reduce(iteration) | p.FinishIteration(iteration):
            return Subject(type(do), (iteration,))


def answered_by(event: Event) -> list[Subject]:  # noqa: C901 - a table of events
    """Return what instructions an event may answer, apart from replaced groups and lost devices."""
    match event:
        case p.BatchGenerated(batch) | p.BatchPaused(batch):
            return [Subject(p.Generate, batch), Subject(p.Pause, batch)]
        case p.FragmentScored(fragment):
            return [Subject(p.Score, fragment)]
        case p.PackTrained(pack) | p.PackTooLarge(pack):
            return [Subject(p.Train, (pack.iteration, pack.index))]
        case p.AdvantagesComputed(iteration, groups):
            return [Subject(p.ComputeAdvantages, (iteration, groups))]
        case p.GradientReduced(iteration) | p.ReduceFailed(iteration):
            return [Subject(p.Reduce, (iteration,))]
        case p.Stepped(version) | p.UpdateSkipped(_, version):
            return [Subject(p.Step, (version,))]
        case p.StateCopied(device, version):
            return [Subject(p.CopyState, (device, version))]
        case p.VersionLoaded(device, version) | p.PushFailed(device, version):
            return [Subject(p.Push, (device, version))]
        case p.Switched(device, role):
            return [Subject(p.Switch, (device, role))]
        case _:
            return []
