"""What waits for what at the end of a log: what devices do, and what each iteration lacks."""

from collections.abc import Iterator
from dataclasses import dataclass

from digen_core.control.devices.device_state import DeviceState
from digen_core.control.protocol import Fragment, Role
from digen_core.control.snapshot import IterationSnapshot, Snapshot
from digen_core.eventlog.entries import Asked
from digen_core.eventlog.words import instruction_text, named, pack_named

SHOWN = 4  # of things of one kind


@dataclass(frozen=True, slots=True)
class Doing:
    """An instruction that was not answered yet."""

    text: str
    since: float  # seconds since the epoch


@dataclass(frozen=True, slots=True)
class DeviceNow:
    """A device: its first work is what it is at, if nothing is wrong with it."""

    name: str
    mode: Role
    versions: tuple[int, ...]
    doing: tuple[Doing, ...]  # the first asked first; loading a version is beside the other work
    why_idle: str  # empty unless it was asked for nothing


@dataclass(frozen=True, slots=True)
class IterationNow:
    """An iteration that is not over, and what it lacks until it is."""

    number: int  # from 1
    lacks: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Now:
    """What a run waits for."""

    version: int
    devices: tuple[DeviceNow, ...]
    elsewhere: tuple[Doing, ...]  # what no device does
    iterations: tuple[IterationNow, ...]


def waiting(now: Snapshot, under_way: list[Asked]) -> Now:
    """Return what a run waits for.

    Args:
        now: the controller's state.
        under_way: what was asked and not answered, the first first.
    """
    by_device: dict[str, list[Doing]] = {}
    for one in under_way:
        name = getattr(one.instruction, "device", "")
        doing = Doing(instruction_text(one.instruction), one.time)
        by_device.setdefault(name, []).append(doing)
    devices = tuple(
        DeviceNow(
            state.name,
            state.mode,
            tuple(sorted(state.loaded)),
            tuple(by_device.get(state.name, ())),
            "" if state.name in by_device else _why_idle(state, now),
        )
        for state in now.fleet.devices
    )
    return Now(now.version, devices, tuple(by_device.get("", ())), tuple(_iterations(now)))


def _why_idle(state: DeviceState, now: Snapshot) -> str:
    """Return what a device that was asked for nothing waits for."""
    if state.leaving:
        return "it leaves when nobody needs what it has"
    if not now.iterations:
        return "no iteration is under way"
    oldest = now.iterations[0]
    if oldest.reducing:
        return f"the update of i{oldest.index + 1} is made"
    if now.version not in state.loaded:
        return f"it does not hold v{now.version}"
    if state.mode == "trainer":
        return "no pairs are ready" if not oldest.pool else "the pairs that are ready are too few"
    left = sum(len(iteration.waiting) for iteration in now.iterations)
    return f"none of the {left} fragments that wait may go on here" if left else "no fragment waits"


def _iterations(now: Snapshot) -> Iterator[IterationNow]:
    for finish, version in now.finishing:
        late = [state.name for state in now.fleet.devices if state.newest < version]
        lacks = _listed(f"devices that do not hold v{version}", late)
        lacks = lacks or [
            f"the copy of v{do.version} on {do.device}" for do in now.copies.under_way
        ]
        lacks = lacks or _listed("devices that leave or turn back", now.awaited())
        yield IterationNow(finish.iteration + 1, tuple(lacks))
    for place, iteration in enumerate(now.iterations):
        lacks = _lacks(iteration)
        if place:
            lacks.append(f"its turn: i{now.iterations[0].index + 1} is trained first")
        yield IterationNow(iteration.index + 1, tuple(lacks))
    for offer in now.offered:
        yield IterationNow(offer.iteration + 1, ("its turn: as many are open as may be",))


def _lacks(it: IterationSnapshot) -> list[str]:
    """Return what an iteration lacks, in the order in which it comes."""
    generating, scored_on = dict(it.generating), dict(it.scored_on)
    unscored = {fragment for left in it.unscored.values() for fragment in left}
    asked = {f: scored_on[f] for f in unscored if f in scored_on and f not in generating}
    waiting = [named(fragment) for fragment, _ in it.waiting]
    held_back = [named(do.fragment) for do in it.to_score]
    packs = [f"{pack_named(pack)} on {device}" for pack, device in it.training]
    num_pairs = sum(block.num_rows for block in it.pool)
    lacks = [
        *_listed("fragments under way", _on(generating)),
        *_listed("fragments that wait for a device", waiting),
        *_listed("fragments that are scored", _on(asked)),
        *_listed("fragments that are scored after the last one", held_back),
        *_listed("groups without advantages", [f"g{group}" for group in it.without_advantages]),
        *_listed("fragments that are generated again", [named(f) for f, _ in it.parked]),
        *([f"pairs that wait for a device: {num_pairs}"] if num_pairs else []),
        *_listed("packs under way", packs),
    ]
    if it.stepping:
        return [*lacks, "the optimizer's step"]
    return [*lacks, "the sum of the gradients" if it.reducing else "the update"]


def _on(fragments: dict[Fragment, str]) -> list[str]:
    return [f"{named(fragment)} on {device}" for fragment, device in sorted(fragments.items())]


def _listed(what: str, names: list[str]) -> list[str]:
    """Return a line that names the first things and counts the others, if there are any."""
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return [f"{what}: {', '.join(names[:SHOWN])}{more}"] if names else []
