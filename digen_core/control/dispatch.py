"""What a device that has room in its queue does next: generate, train, or turn to the other role.

| a device that generates: a fragment; none left -> turn to training, if it may and it pays
| a device that trains: a pack; no pairs -> turn to generation, if it may and it pays

Generation goes first: a fragment's rewards and pairs come after it, a pair has nothing after it.
"""

from collections.abc import Sequence
from math import ceil, inf

from digen_core.control.fleet import DeviceState, Fleet
from digen_core.control.helping import Backlog, pays_to_generate, pays_to_train
from digen_core.control.iteration import Iteration
from digen_core.control.packing import seconds_to_share, smallest_pack
from digen_core.control.protocol import (
    Fragment,
    Generate,
    Instruction,
    Pack,
    Pause,
    Role,
    Switch,
    Train,
)
from digen_core.control.schedule import Schedule, Workload


class Dispatcher:
    """Gives work to devices. It mutates their queues and the iterations it takes the work from."""

    def __init__(self, fleet: Fleet, workload: Workload, schedule: Schedule) -> None:
        self._fleet = fleet
        self._workload = workload
        self._schedule = schedule
        self._layout = schedule.layout
        self._quota = int(schedule.max_stale_share * workload.num_groups + 1e-9)

    def dispatch(
        self, iterations: Sequence[Iteration], version: int, *, another_offered: bool
    ) -> list[Instruction]:
        """Fill the queues of the devices, the first places of all before the second ones.

        Args:
            iterations: that have begun, the oldest first; only the oldest is trained.
            version: the newest one.
            another_offered: whether one more iteration waits to begin.
        """
        instructions: list[Instruction] = []
        devices = self._fleet.fastest_first()
        for depth in range(1, self._schedule.queue_depth + 1):
            for device in devices:
                if len(device.queue) < depth and self._deep_enough(device, iterations, depth):
                    instructions += self._next(device, iterations, version, another_offered)
        return instructions

    def _deep_enough(
        self, device: DeviceState, iterations: Sequence[Iteration], depth: int
    ) -> bool:
        """Keep the last pieces of work for whichever device is free first.

        And the first ones for devices that have nothing yet, whose version is still on its way.
        """
        if depth == 1:
            return True
        if not iterations or not all(other.queue for other in self._fleet.with_mode(device.mode)):
            return False
        others = len(self._fleet.with_mode(device.mode)) - 1
        if device.mode == "rollout":
            return len(iterations[0].queue) > others
        return iterations[0].pool.num_pairs > others * self._workload.pack_size

    def _next(
        self,
        device: DeviceState,
        iterations: Sequence[Iteration],
        version: int,
        another_offered: bool,
    ) -> list[Instruction]:
        if device.mode == "rollout":
            due, early = iterations[:1], iterations[1:]
            found: list[Instruction] = []
            if early and self._leaves_to_faster(device, iterations[0]):
                found = self.generate(device, early, version + 1)
            if not (found or self._should_leave(device, iterations, version)):
                found = self.generate(device, due, version)
            if found or not self._should_train(device, iterations, version):
                return found or self.generate(device, early, version + 1)
            return self.switch(device, "trainer") or self.train(device, iterations, version)
        found = self.train(device, iterations, version) if device.home == "rollout" else []
        if found or not self._should_generate(device, iterations, version, another_offered):
            return found or self.train(device, iterations, version)
        return self.switch(device, "rollout") or self.generate(device, iterations[:1], version)

    # --- one piece of work ----------------------------------------------------------------

    def generate(
        self, device: DeviceState, iterations: Sequence[Iteration], trained_at: int
    ) -> list[Instruction]:
        """Give a device its next fragment, if there is one.

        Args:
            device: that generates.
            iterations: to take it from, in order.
            trained_at: the version that the first of them is trained at; the others follow.
        """
        for place, iteration in enumerate(iterations):
            staleness = trained_at + place - device.newest
            begin = device.newest if self._may_begin(iteration, staleness) else None
            found = iteration.queue.take(device.loaded, begin, is_stale=staleness > 0)
            if found is not None:
                iteration.generate(found[0], device.name)
                return self._generate(device, *found)
        return []

    def _may_begin(self, iteration: Iteration, staleness: int) -> bool:
        """Say whether a group may begin that will be trained ``staleness`` versions later."""
        if staleness <= 0:
            return True
        within = staleness <= self._schedule.max_staleness
        return within and len(iteration.queue.stale) < self._quota

    def _generate(
        self, device: DeviceState, fragment: Fragment, next_step: int, version: int
    ) -> list[Instruction]:
        do = Generate(fragment, next_step, self._workload.num_steps, version, device.name)
        device.queue.append(do)
        return [do]

    def train(
        self, device: DeviceState, iterations: Sequence[Iteration], version: int
    ) -> list[Instruction]:
        """Give a device its next pack, if there is one."""
        if not iterations or version not in device.loaded:
            return []
        iteration = iterations[0]
        if iteration.without_advantages and not self._layout.pipelined:
            return []
        if not device.packs:
            device.packs = self._packs_for(device, iteration)
        if not device.packs:
            return []
        do = Train(device.packs.pop(0), version, device.name)
        device.queue.append(do)
        return [do]

    def _packs_for(self, device: DeviceState, iteration: Iteration) -> list[Pack]:
        """Take pairs out of the pool: one pack, or without TSP all steps of some samples."""
        if not iteration.pool.num_pairs:
            return []
        most = min(device.largest_pack or self._workload.pack_size, self._workload.pack_size)
        if self._layout.packed:
            size = self._pack_size(device, iteration, most)
            taken = [iteration.pool.take(size)] if size else []
        else:
            num_steps = len(iteration.trained_steps)
            most = min(most, self._workload.samples_per_pack)
            size = self._fair_size(device, iteration.pool.num_pairs, most, num_steps)
            taken = iteration.pool.take_by_step(size, num_steps)
        packs = [iteration.make_pack(blocks, device.name) for blocks in taken]
        device.trains_until = max(device.trains_until, self._fleet.training_clock)
        device.trains_until += sum(
            self._fleet.costs_of(device).pack(pack.num_pairs) for pack in packs
        )
        return packs

    def _pack_size(self, device: DeviceState, iteration: Iteration, most: int) -> int:
        """Return how many of the ready pairs make the next pack; 0: wait for more of them."""
        ready, smallest = iteration.pool.num_pairs, 1
        if iteration.without_advantages:  # more pairs will come
            smallest = smallest_pack(self._fleet.costs_of(device).pack, most)
            if ready < smallest:
                return 0
        return min(ready, most, max(smallest, self._fair_size(device, ready, most)))

    def _fair_size(self, device: DeviceState, ready: int, most: int, num_steps: int = 1) -> int:
        """Return how large a device's packs are if all trainers finish the ready pairs together.

        Dynamic batching: full packs while much is ready; smaller ones towards the end, when some
        devices would have a pack and others none.

        Args:
            device: that trains them.
            ready: pairs that can be trained.
            most: the size of a full pack.
            num_steps: packs that are made together, one of each step.
        """
        trainers = self._fleet.with_mode("trainer")
        if most == 1 or ready >= 2 * most * num_steps * len(trainers):
            return most
        seconds = self._seconds_to_train(trainers, ready)
        size = max(seconds * self._fleet.training_rate(device) / num_steps - 1e-6, 1e-6)
        return ceil(size / ceil(size / most))

    def switch(self, device: DeviceState, role: Role) -> list[Instruction]:
        """Turn a device to a role: at once if that is free, else by an instruction."""
        device.mode = role
        costs = self._fleet.costs
        seconds = costs.switch_to_rollout if role == "rollout" else costs.switch_to_trainer
        device.trains_until = self._fleet.training_clock + seconds
        if not seconds:
            return []
        do = Switch(device.name, role)
        device.queue.append(do)
        return [do]

    # --- turning to the other role --------------------------------------------------------

    def _should_train(
        self, device: DeviceState, iterations: Sequence[Iteration], version: int
    ) -> bool:
        """Say whether a device with no fragment of the oldest iteration turns to its pairs."""
        if not (device.may_train and iterations) or self._layout.colocated:
            return False
        if iterations[0].reducing or version not in device.loaded:
            return False
        smallest = self._fleet.costs_of(device).pack(1)
        seconds = self._backlog(iterations[0], without=device).training
        return pays_to_train(seconds, self._fleet.costs, smallest_pack_seconds=smallest)

    def _should_generate(
        self,
        device: DeviceState,
        iterations: Sequence[Iteration],
        version: int,
        another_offered: bool,
    ) -> bool:
        """Say whether a device that trains turns to generation."""
        if not device.may_generate or device.queue or self._layout.colocated:
            return False
        if not device.may_train:
            return True  # it generates for good
        done = not iterations or iterations[0].all_taken
        if done and (another_offered or len(iterations) > 1):
            # Ready for the next version when it comes; but the holder still has to step.
            return device.name != self._fleet.holder or not iterations
        if done:
            return device.home == "rollout"
        if device.home == "rollout":  # it helped, and fragments came back from elsewhere
            return iterations[0].queue.offers(device.loaded, version)
        if iterations[0].pool.num_pairs and not self._layout.rollouts_train:
            return False  # TAG: a trainer prefers pairs that are ready
        if not iterations[0].queue.offers(device.loaded, version):
            return False
        workload = self._workload
        fragment = self._fleet.costs_of(device).fragment(workload.fragment_size, workload.num_steps)
        backlog = self._backlog(iterations[0], without=device)
        return pays_to_generate(backlog.generation, self._fleet.costs, fragment_seconds=fragment)

    def _should_leave(
        self, device: DeviceState, iterations: Sequence[Iteration], version: int
    ) -> bool:
        """Say whether a helper goes back to its pairs although fragments are left (TAG).

        It does when the others generate them before they have trained what there is. Where rollout
        devices train too, generation is never what is waited for in the end, and helpers stay.
        """
        if device.home == "rollout" or self._layout.rollouts_train or self._layout.colocated:
            return False
        if not iterations or not iterations[0].pool.num_pairs or version not in device.loaded:
            return False
        backlog = self._backlog(iterations[0], without=device)
        return backlog.training >= backlog.generation

    def pauses(self, iterations: Sequence[Iteration], version: int) -> list[Instruction]:
        """Pause the fragments of helpers whose pairs are ready now; others resume them."""
        return [
            Pause(device.queue[0].fragment, device.name)
            for device in self._fleet
            if device.queue
            and isinstance(device.queue[0], Generate)
            and self._should_leave(device, iterations, version)
        ]

    def _leaves_to_faster(self, device: DeviceState, iteration: Iteration) -> bool:
        """Say whether faster devices end the last due fragments sooner, though they are busy.

        Each is, on average, half through a fragment. So the slow ones begin what is due later.
        """
        rate = self._fleet.generation_rate
        generating = self._fleet.with_mode("rollout")
        faster = [other for other in generating if 1.5 / rate(other) < 1 / rate(device)]
        return 0 < len(iteration.queue) <= len(faster)

    # --- what is left ---------------------------------------------------------------------

    def _backlog(self, iteration: Iteration, *, without: DeviceState) -> Backlog:
        """Estimate the seconds that the others need for the oldest iteration."""
        workload = self._workload
        others = [device for device in self._fleet if device is not without]
        steps = iteration.queue.remaining_steps(workload.num_steps)
        for device in others:
            for do in device.queue[:1]:
                if isinstance(do, Generate) and do.fragment.iteration == iteration.index:
                    steps += (do.end_step - do.first_step) // 2  # half done, on average
        generating = [device for device in others if device.mode == "rollout"]
        speed = sum(map(self._fleet.generation_rate, generating))
        generation = steps / speed if speed else inf if steps else 0.0
        training = [device for device in others if device.mode == "trainer"]
        pairs = iteration.pool.num_pairs + iteration.pairs_to_come(workload)
        return Backlog(generation, self._seconds_to_train(training, pairs))

    def _seconds_to_train(self, devices: Sequence[DeviceState], pairs: float) -> float:
        """Predict how long devices need for pairs, after what they do already."""
        if not devices:
            return inf if pairs else 0.0
        clock = self._fleet.training_clock
        rates = [self._fleet.training_rate(device) for device in devices]
        free_in = [max(0.0, device.trains_until - clock) for device in devices]
        return seconds_to_share(pairs, free_in, rates)
