"""The capacity of devices: which roles their memory leaves them, and how much they do at once.

Importing this module must not import torch.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Final

from digen_core.config.run import RunConfig
from digen_core.errors import UserError
from digen_core.planning.clusters.cluster import Cluster
from digen_core.planning.clusters.groups import ROLES, DeviceGroup
from digen_core.planning.memory import Memory

GB: Final = 10**9

_WORDS: Final[dict[str, str]] = {
    "rollout": "to generate one sample",
    "trainer": "to train one pair",
}


@dataclass(frozen=True, slots=True)
class Fit:
    """What a recipe can do on the devices of a cluster."""

    cluster: Cluster  # its devices with the roles that their memory leaves them
    fragment_size: int  # samples of a fragment that every device which generates takes at once
    batch_size: int  # samples that each of them denoises at once, of several such fragments
    pack_size: int  # pairs, likewise
    helps: bool  # whether all devices that may train have room for generating beside it
    assists: bool  # whether all devices that may generate have room for training beside it


def fit(
    cluster: Cluster,
    memories: Mapping[int, Memory],
    fragment_size: int,
    pack_size: int,
    batch_size: int = 1,
) -> Fit:
    """Hold what a recipe needs against the devices whose ``capacity`` is known.

    Args:
        cluster: the devices.
        memories: of the recipe, by the size of the gang: of each GPU of one.
        fragment_size: samples of a fragment, at most.
        pack_size: pairs of a pack, at most.
        batch_size: samples that are denoised together, at most.

    Raises:
        ShortageError: some devices can do nothing, or a role is left without a device.
    """
    groups = tuple(_narrowed(group, memories[group.members]) for group in cluster.devices)
    for role in sorted(ROLES["both"]):
        if not any(role in ROLES[group.roles] for group in groups):
            largest = max(groups, key=lambda group: group.capacity or 0)
            label = f"the largest device, of {_shown(largest)},"
            raise ShortageError(label, memories[largest.members], {role})

    def do_both(role: str) -> bool:
        own = [group for group in groups if role in ROLES[group.roles] and group.capacity]
        return all(memories[group.members].both(1, 1) <= _room(group) for group in own)

    helps, assists = do_both("trainer"), do_both("rollout")

    def does_both(group: DeviceGroup) -> bool:
        return (helps and group.roles != "rollout") or (assists and group.roles != "trainer")

    def generates(size: int, group: DeviceGroup, batch_size: int = 1) -> int:
        memory, both = memories[group.members], does_both(group)
        return memory.both(size, 1, batch_size) if both else memory.rollout(size, batch_size)

    def trains(size: int, group: DeviceGroup) -> int:
        memory = memories[group.members]
        return memory.both(1, size) if does_both(group) else memory.trainer(size)

    generating = [group for group in groups if group.roles != "trainer" or helps]
    fragment_size = _largest(generates, generating, fragment_size)
    batch_size = _largest(
        lambda size, group: generates(fragment_size, group, size), generating, batch_size
    )
    return Fit(
        cluster.model_copy(update={"devices": groups}),
        fragment_size,
        batch_size,
        _largest(trains, [g for g in groups if g.roles != "rollout" or assists], pack_size),
        helps,
        assists,
    )


def fit_recipe(config: RunConfig, cluster: Cluster, memories: Mapping[int, Memory]) -> Fit:
    """Return what ``fit`` does for fragments of up to a group, and a config's packs and batches."""
    rollout = config.rollout
    sizes = rollout.group_size, config.train.pack_size, rollout.batch_size or 1
    return fit(cluster, memories, *sizes)


def least(memory: Memory, roles: Collection[str]) -> int:
    """Return the bytes without which a device cannot do its roles: one sample, or one pair."""
    if len(roles) > 1:
        return memory.both(1, 1)
    return memory.rollout(1) if "rollout" in roles else memory.trainer(1)


class ShortageError(UserError):
    """A recipe does not fit into the memory of a device; the message is one line."""

    def __init__(
        self, whose: str, memory: Memory, roles: Collection[str], *, has_all: bool = False
    ) -> None:
        """Say what a device lacks.

        Args:
            whose: the device.
            memory: what it would have to hold.
            roles: one of which it might have.
            has_all: it has all of them.
        """
        needs = [f"{least(memory, {r}) / GB:.1f} GB {_WORDS[r]}" for r in sorted(roles)]
        if has_all and len(roles) > 1:
            needs.append(f"{least(memory, roles) / GB:.1f} GB to do both in turn")
        super().__init__(f"{whose} lacks the memory that this takes: {', '.join(needs)}")


def _narrowed(group: DeviceGroup, memory: Memory) -> DeviceGroup:
    """Return a group with the roles that its memory leaves it."""
    if group.capacity is None:
        return group
    asked = ROLES[group.roles]
    left = {role for role in asked if least(memory, {role}) <= _room(group)}
    if not left:
        raise ShortageError(f"kind {group.kind}, of {_shown(group)},", memory, asked)
    roles = next(name for name, declared in ROLES.items() if declared == left)
    return group.model_copy(update={"roles": roles})


def _shown(group: DeviceGroup) -> str:
    gang = f" in gangs of {group.members}" if group.members > 1 else ""
    return f"{group.capacity or 0:g} GB{gang}"


def _room(group: DeviceGroup) -> float:
    assert group.capacity is not None
    return group.capacity * GB


def _largest(
    needed: Callable[[int, DeviceGroup], int], groups: Collection[DeviceGroup], most: int
) -> int:
    """Return the most items, up to ``most``, that fit on all devices whose capacity is known."""
    known = [group for group in groups if group.capacity is not None]
    fitting = (
        size
        for size in range(most, 1, -1)
        if all(needed(size, group) <= _room(group) for group in known)
    )
    return next(fitting, 1)
