"""What events and instructions concern, and the words with which somebody asks for that."""

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Final

from digen_core.control import protocol as p
from digen_core.control.protocol import Batch, Event, Fragment, Instruction, Pack
from digen_core.errors import UserError
from digen_core.inputs.reading import listed, shown

LETTERS: Final = {
    "i": "iteration",
    "g": "group",
    "f": "fragment",
    "p": "pack",
    "v": "version",
}


@dataclass(frozen=True, slots=True)
class Topic:
    """Something that an event, an instruction or a question is about; None: it says nothing."""

    iteration: int | None = None
    group: int | None = None
    fragment: int | None = None  # of the group
    pack: int | None = None
    version: int | None = None
    device: str | None = None

    def concerns(self, asked: "Topic") -> bool:
        """Say whether this is about what was asked for.

        What happens to a whole group happens to its fragments.
        """
        for field in fields(self):
            wanted, own = getattr(asked, field.name), getattr(self, field.name)
            of_all = field.name == "fragment" and own is None and self.group is not None
            if wanted is not None and own != wanted and not of_all:
                return False
        return True


def parse_topic(words: Sequence[str], devices: Collection[str]) -> Topic:
    """Return what somebody asks for: all words together, such as "i5 g3 f1".

    Args:
        words: names of an iteration (from 1), group, fragment, pack, version or device.
        devices: that there are or were.

    Raises:
        UserError: a word is none of these, or two name the same kind of thing.
    """
    topic = Topic()
    for word in words:
        name, value = _meant(word, devices)
        if getattr(topic, name) is not None:
            raise UserError(f"{shown(word)} is the second {name}; ask for one at a time")
        changes: dict[str, Any] = {name: value}
        topic = replace(topic, **changes)
    if topic.fragment is not None and topic.group is None:
        raise UserError(f"f{topic.fragment} is of which group? For example: g3 f{topic.fragment}")
    return topic


def _meant(word: str, devices: Collection[str]) -> tuple[str, int | str]:
    """Return which field of a topic a word sets, and to what."""
    if word in devices:
        return "device", word
    if found := re.fullmatch(r"([igfpv])(\d{1,9})", word):
        name = LETTERS[found[1]]
        return name, int(found[2]) - (name == "iteration")
    raise UserError(
        f"{shown(word)} is nothing that the log tells of; ask for i5, g3, f1, p7, v2 or one of the "
        f"devices {listed(sorted(devices))}"
    )


def topics_of(word: Event | Instruction) -> list[Topic]:
    """Return all that an event or instruction is about."""
    version = getattr(word, "version", None)
    if isinstance(word, p.Step):
        version = word.version + 1  # what it makes
    names: list[str] | list[None] = _devices_of(word) or [None]
    return [
        replace(topic, version=version, device=name) for topic in _things_of(word) for name in names
    ]


def _devices_of(word: Event | Instruction) -> list[str]:
    match word:
        case p.DevicesLost(devices):
            return list(devices)
        case p.Reduce(_, devices, device):
            return [device, *(name for name in devices if name != device)]
        case p.DeviceJoined(device):
            return [device.name]
    name = getattr(word, "device", None)
    return [] if name is None else [name]


def _things_of(word: Event | Instruction) -> list[Topic]:
    """Return the iterations, groups, fragments and packs."""
    fragment, pack = getattr(word, "fragment", None), getattr(word, "pack", None)
    iteration, batch = getattr(word, "iteration", None), getattr(word, "batch", None)
    if isinstance(batch, Batch):
        return [Topic(own.iteration, own.group, own.index) for own in batch.fragments]
    if isinstance(fragment, Fragment):
        return [Topic(fragment.iteration, fragment.group, fragment.index)]
    if isinstance(pack, Pack):
        parts = dict.fromkeys(block.fragment for block in pack.blocks)
        return [Topic(pack.iteration, f.group, f.index, pack.index) for f in parts]
    match word:
        case p.GroupsReplaced(_, groups):
            return [Topic(iteration, group) for pair in groups for group in pair]
        case p.AdvantagesComputed(_, groups) | p.ComputeAdvantages(_, groups):
            return [Topic(iteration, group) for group in groups]
    return [Topic(iteration)]
