"""Updates: from the last pair in a sum of gradients to the version that every device holds.

| Reduce -> GradientReduced -> Step -> Stepped -> CopyState -> StateCopied
|   -> Push* -> VersionLoaded -> FinishIteration
"""

from collections.abc import Iterable
from dataclasses import replace

from digen_core.control.devices.device_state import DeviceState
from digen_core.control.generation import UsableVersions
from digen_core.control.iteration import Iteration
from digen_core.control.protocol import FinishIteration, Instruction, Reduce, Step
from digen_core.control.state import ControllerState
from digen_core.control.turns import Turns


class Updates:
    """What is to be done for the next version, and with it."""

    def __init__(self, state: ControllerState, turns: Turns) -> None:
        self._it = state
        self._turns = turns

    def start(self) -> list[Instruction]:
        """Give every device the version that the run begins with."""
        it = self._it
        return [*it.copies.of(it.version), *self.push(it.version, it.fleet)]

    # --- gradients ------------------------------------------------------------------------

    def closed(self, iteration: Iteration) -> list[Instruction]:
        """End the training of an update whose last pair is in a sum, or that has none."""
        is_oldest = iteration is self._it.iterations[0]
        if iteration.reducing or not iteration.update_is_trained or not is_oldest:
            return []
        if not iteration.trained:
            return self._after(iteration)
        iteration.reducing = True
        devices = tuple(sorted(iteration.trained))
        return [Reduce(iteration.index, devices, self._it.fleet.holder)]

    def on_reduced(self, iteration: Iteration) -> list[Instruction]:
        """Step, with the sum of all devices."""
        if not iteration.reducing or iteration.stepping:
            raise self._it.error(f"iteration {iteration.index} was not being reduced")
        iteration.stepping = True
        return [Step(iteration.index, self._it.version, self._it.fleet.holder)]

    # --- the optimizer's state --------------------------------------------------------------

    def on_stepped(self, version: int) -> list[Instruction]:
        """Take note of a step; its version counts when its state cannot be lost any more."""
        if version != self._it.version + 1 or not self._it.iterations[0].stepping:
            raise self._it.error(f"version {version} does not follow")
        return self.copied_or_made(version)

    def on_skipped(self, iteration: Iteration, version: int) -> list[Instruction]:
        """Go on without a step, whose gradient was not finite."""
        if version != self._it.version + 1 or not iteration.stepping:
            raise self._it.error(f"version {version} was not to be made")
        self._it.fleet.restart_clock()
        then = self._after(iteration)
        return [*self.copy_if_still(), *then]  # a standby may have come meanwhile

    def copied_or_made(self, version: int) -> list[Instruction]:
        """Have the state of the next version copied; it counts when that is done, or cannot be."""
        return list(self._it.copies.of(version)) or self._made(version)

    def copy_if_still(self) -> list[Instruction]:
        """Have the state copied, unless the next one is being made."""
        stepping = self._it.iterations and self._it.iterations[0].stepping
        return [] if stepping else list(self._it.copies.of(self._it.version))

    def on_copied(self, name: str, version: int) -> list[Instruction]:
        """Take up the version whose state was copied, if it is the next one."""
        if not self._it.copies.made(version, name, self._it.versions.generating[0]):
            raise self._it.error(f"{name} copied the state of version {version} unasked")
        return self._made(version) if version > self._it.version else []

    # --- versions -------------------------------------------------------------------------

    def _made(self, version: int) -> list[Instruction]:
        """Take up a version that cannot be lost with one device any more."""
        it = self._it
        it.versions = replace(it.versions, newest=version)
        it.fleet.restart_clock()
        it.iterations[0].updated = True
        return self._after(it.iterations[0])

    def _after(self, iteration: Iteration) -> list[Instruction]:
        """Go on with the next update of an iteration, or with the next iteration."""
        it = self._it
        if iteration.begin_next_update():
            return [*self.push_to_trainers(), *self.closed(iteration)]
        it.iterations.popleft()
        it.finishing.append(
            (FinishIteration(iteration.index, updated=iteration.updated), it.version)
        )
        pushes: list[Instruction] = []
        if it.version != it.versions.policy:
            generating = (*it.versions.generating, it.version)
            it.versions = UsableVersions(it.version, generating[-it.schedule.num_ahead - 1 :])
            pushes = self.push(it.version, it.fleet)
        turns: list[Instruction] = []
        if it.layout.colocated:  # who has to load it turns then
            ready = [device for device in it.fleet if it.version in device.loaded]
            turns = self._turns.of(ready, "rollout")
        return [*pushes, *turns, *(self.closed(it.iterations[0]) if it.iterations else [])]

    def push(self, version: int, devices: Iterable[DeviceState]) -> list[Instruction]:
        """Have devices load a version that they do not hold."""
        lacking = [device.name for device in devices if version not in device.loaded]
        self._it.pushes.ask(version, lacking)
        return self.begin_pushes()

    def push_to_trainers(self) -> list[Instruction]:
        """Push the newest version to those that may train and have it not, as one that just may."""
        it = self._it
        return self.push(it.version, (device for device in it.fleet if device.may_train))

    def begin_pushes(self) -> list[Instruction]:
        """Begin the pushes for which there is a source now."""
        return list(self._it.pushes.begin(self._it.version, self._it.needed_versions()))

    def on_push_failed(self, name: str, version: int, source: str) -> list[Instruction]:
        """Have a device ask another source."""
        if not self._it.pushes.failed(version, name, source):
            raise self._it.error(f"{name} was not to load version {version}")
        return self.begin_pushes()

    def on_loaded(self, name: str, version: int) -> list[Instruction]:
        """Take note of a version that a device holds, a source from now on."""
        if not self._it.pushes.loaded(version, name):
            raise self._it.error(f"{name} loaded version {version} unasked")
        device = self._it.fleet[name]
        device.loaded |= {version}
        device.loaded &= {*self._it.versions.generating, device.newest}
        self._it.fleet.file(device)
        return [*self.begin_pushes(), *self._turns.when_loaded(device)]

    def finished(self) -> list[Instruction]:
        """Return the iterations that are over: all devices hold what they made, in order."""
        it, finished = self._it, list[Instruction]()
        while it.finishing:
            finish, version = it.finishing[0]
            if not it.fleet.all_hold(version) or self._is_last_and_awaited:
                break
            it.finishing.popleft()
            finished.append(finish)
        return finished

    @property
    def _is_last_and_awaited(self) -> bool:
        """Whether one iteration is left, and more will be told when what is under way is done.

        A device that leaves goes then, and one that turned to train turns back. That, and what
        others are told of it, shows in an iteration.
        """
        it = self._it
        if it.iterations or it.offered or len(it.finishing) > 1:
            return False
        return any(map(it.is_busy, it.fleet.leaving())) or it.fleet.any_turns_to_train()
