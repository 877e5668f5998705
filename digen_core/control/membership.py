"""Membership: devices that join a run, are lost, or leave it.

What lost devices held is recomputed (`recovery.py`); one that leaves is kept until nobody needs it.
"""

from digen_core.control.devices.device_state import DeviceState
from digen_core.control.protocol import Device, Instruction, Release
from digen_core.control.recovery import lose_devices, lose_holder
from digen_core.control.state import ControllerError, ControllerState
from digen_core.control.turns import Turns
from digen_core.control.updates import Updates


class Membership:
    """Which devices a run has."""

    def __init__(self, state: ControllerState, turns: Turns, updates: Updates) -> None:
        self._it = state
        self._turns = turns
        self._updates = updates

    def on_joined(self, device: Device) -> list[Instruction]:
        """Take a device in, and give it every version that work may name."""
        it = self._it
        if device.name in it.fleet:
            raise it.error(f"{device.name} joined, but is there already")
        it.fleet.add(device)
        for version in sorted(it.needed_versions() | {it.version}):
            it.pushes.ask(version, [device.name])
        return [*self._updates.copy_if_still(), *self._updates.begin_pushes()]

    def on_lost(self, names: frozenset[str]) -> list[Instruction]:
        """Have done again what devices held that were lost together."""
        it = self._it
        if not it.survives(names):
            holder = it.fleet.holder
            raise ControllerError(f"{holder} is lost, and with it the state of the optimizer")
        if strangers := sorted(name for name in names if name not in it.fleet):
            raise it.error(f"{', '.join(strangers)} lost, but was not there")
        it.pushes.lose(names)
        not_copied = it.copies.lose(names)
        was_holder = self._lose(names)
        if it.version + 1 in not_copied and not was_holder:
            return [*self._updates.copied_or_made(it.version + 1), *self._load_again()]
        reduces = self._updates.closed(it.iterations[0]) if was_holder and it.iterations else []
        return [*self._updates.copy_if_still(), *self._load_again(), *reduces]

    def _lose(self, names: frozenset[str]) -> bool:
        """Take devices and what they held out; say whether the holder was one of them."""
        it = self._it
        lost = [it.fleet.remove(name) for name in sorted(names)]
        it.fleet.keep_roles()
        returned = [pack for device in lost for pack in device.packs]
        for device in it.fleet:
            returned += it.fleet.return_packs(device)
        if was_holder := it.fleet.holder in names:
            it.fleet.replace_holder()
            for iteration in it.iterations:
                lose_holder(iteration)
        for iteration in it.iterations:
            own = [pack for pack in returned if pack.iteration == iteration.index]
            lose_devices(iteration, names, own, it.workload)
        return was_holder

    def _load_again(self) -> list[Instruction]:
        """Turn colocated devices to what was lost; push versions that are not there any more."""
        it = self._it
        if it.layout.colocated and it.iterations and len(it.iterations[0].queue):
            return [*self._updates.begin_pushes(), *self._turns.all("rollout")]
        generating = it.fleet.with_home("rollout")
        missing = it.begun_versions().difference(*(device.loaded for device in generating))
        for version in sorted(missing):
            it.pushes.ask(version, [device.name for device in generating])
        return self._updates.push_to_trainers()

    def may_leave(self, name: str) -> bool:
        """Say whether others have the roles of a device, and can have the optimizer's state."""
        fleet = self._it.fleet
        stay = (device for device in fleet if not device.leaving and device.name != name)
        roles = {role for device in stay for role in device.device.roles}
        followed = name != fleet.holder or self._it.copies.can_follow()
        return followed and roles.issuperset(fleet[name].device.roles)

    def on_leaving(self, name: str) -> list[Instruction]:
        """Give a device no work any more; others go on with what it was told to do next."""
        it = self._it
        if name not in it.fleet or not self.may_leave(name):
            raise it.error(f"{name} cannot leave")
        for pack in it.fleet.leave(it.fleet[name]):
            iteration = it.open(pack.iteration)
            del iteration.training[pack.index]
            iteration.put(pack.blocks)
        copies = self._updates.copy_if_still() if name == it.fleet.holder else []
        return [*copies, *self._updates.push_to_trainers(), *self._turns.when_generated()]

    def release(self) -> list[Instruction]:
        """Let the leaving devices go of which nothing is needed any more."""
        released: list[Instruction] = []
        for device in self._it.fleet.leaving():
            if not self._is_needed(device):
                released += [Release(device.name), *self.on_lost(frozenset([device.name]))]
        return released

    def _is_needed(self, device: DeviceState) -> bool:
        name, it = device.name, self._it
        if it.is_busy(device):
            return True
        if name == it.fleet.holder:
            updating = any(iteration.reducing for iteration in it.iterations)
            if updating or not it.survives([name]):
                return True
        return any(iteration.needs(name) for iteration in it.iterations)
