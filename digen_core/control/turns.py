"""Turns of devices with both roles: from generating to training, and back."""

from collections.abc import Iterable

from digen_core.control.devices.device_state import DeviceState
from digen_core.control.protocol import Instruction, Role
from digen_core.control.state import ControllerState


class Turns:
    """When devices turn to another role."""

    def __init__(self, state: ControllerState) -> None:
        self._it = state

    def when_generated(self) -> list[Instruction]:
        """End the first phase of a colocated layout when all pairs are there."""
        return self.all("trainer") if self._it.layout.colocated and self._train_now() else []

    def when_loaded(self, device: DeviceState) -> list[Instruction]:
        """Turn a device of a colocated layout that has loaded a version to what is done now."""
        if not self._it.layout.colocated:
            return []
        return self.of([device], "trainer" if self._train_now() else "rollout")

    def all(self, role: Role) -> list[Instruction]:
        """Turn all devices."""
        return self.of(list(self._it.fleet), role)

    def of(self, devices: Iterable[DeviceState], role: Role) -> list[Instruction]:
        """Turn those of some devices that are ready for the other role."""
        turning = [device for device in devices if device.mode != role]
        return [do for device in turning for do in self._it.dispatcher.switch(device, role)]

    def _train_now(self) -> bool:
        """Say whether a colocated layout is in its second phase."""
        if not self._it.iterations:
            return False
        oldest = self._it.iterations[0]
        return not (oldest.without_advantages or oldest.regenerating or oldest.is_trained)
