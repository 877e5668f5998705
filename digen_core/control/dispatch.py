"""What a device that has room in its queue does next: generate, train, or turn to the other role.

| a device that generates: a batch; nothing left -> turn to training, if it may and it pays
| a device that trains: a pack; no pairs -> turn to generation, if it may and it pays

Generation goes first: a fragment's rewards and pairs come after it, a pair has nothing after it.
"""

from collections.abc import Sequence
from math import ceil

from digen_core.control.devices.device_state import DeviceState
from digen_core.control.devices.fleet import Fleet
from digen_core.control.generation import UsableVersions
from digen_core.control.helping import Backlog, Helping
from digen_core.control.iteration import Iteration
from digen_core.control.protocol import (
    Batch,
    Fragment,
    Generate,
    Instruction,
    Pack,
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
        self._helping = Helping(fleet, workload, schedule.layout, Backlog(fleet, workload))
        self._stale_limit = schedule.stale_limit(workload.num_groups)

    def dispatch(
        self, iterations: Sequence[Iteration], versions: UsableVersions, *, another_offered: bool
    ) -> list[Instruction]:
        """Fill the queues of the devices, the first places of all before the second ones.

        Args:
            iterations: that have begun, the oldest first; only the oldest is trained.
            versions: on which work may begin.
            another_offered: whether one more iteration waits to begin.
        """
        instructions: list[Instruction] = []
        for depth in range(1, self._schedule.queue_depth + 1):
            instructions += self._fill(depth, iterations, versions, another_offered)
        return instructions

    def _fill(
        self,
        depth: int,
        iterations: Sequence[Iteration],
        versions: UsableVersions,
        another_offered: bool,
    ) -> list[Instruction]:
        """Ask each device with room, in order, what it does next.

        What there is for a device depends on its traits: when there was nothing for one, those that
        are like it are not asked until another one has got or turned to something.
        """
        instructions: list[Instruction] = []
        asking = self._fleet.with_room(depth, None)
        while device := next(asking, None):
            traits = self._fleet.traits_of(device)
            if self._deep_enough(device, iterations, versions, depth):
                instructions += self._next(device, iterations, versions, another_offered)
            if self._fleet.traits_of(device) != traits:
                asking = self._fleet.with_room(depth, device)
        return instructions

    def pauses(self, iterations: Sequence[Iteration], version: int) -> list[Instruction]:
        """Pause the batches of helpers that go back to their pairs; others resume them."""
        return self._helping.pauses(iterations, version)

    def _deep_enough(
        self,
        device: DeviceState,
        iterations: Sequence[Iteration],
        versions: UsableVersions,
        depth: int,
    ) -> bool:
        """Keep the last pieces of work for whichever device is free first.

        And the first ones for devices that have nothing yet, whose version is still on its way.
        """
        if depth == 1:
            return True
        if not iterations or not self._fleet.all_busy(device.mode):
            return False
        others = self._fleet.num(device.mode) - 1
        if device.mode == "rollout":
            others += self._fleet.num_awaited(versions.policy)
            return len(iterations[0].queue) > others * self._workload.fragments_per_batch
        return iterations[0].pool.load > others * self._workload.pack_size

    def _next(
        self,
        device: DeviceState,
        iterations: Sequence[Iteration],
        versions: UsableVersions,
        another_offered: bool,
    ) -> list[Instruction]:
        version = versions.newest
        if device.mode == "rollout":
            found: list[Instruction] = []
            if iterations[1:] and self._leaves_to_faster(device, iterations[0]):
                found = self._generate_early(device, iterations, versions)
            if not (found or self._helping.should_leave(device, iterations, version)):
                found = self.generate(device, iterations[:1], versions)
            if found or not self._helping.should_train(device, iterations, version):
                return found or self._generate_early(device, iterations, versions)
            return self.switch(device, "trainer") or self.train(device, iterations, version)
        found = self.train(device, iterations, version) if device.home == "rollout" else []
        if found or not self._helping.should_generate(
            device, iterations, versions.policy, another_offered
        ):
            return found or self.train(device, iterations, version)
        return self.switch(device, "rollout") or self.generate(device, iterations[:1], versions)

    # --- one piece of work ----------------------------------------------------------------

    def generate(
        self,
        device: DeviceState,
        iterations: Sequence[Iteration],
        versions: UsableVersions,
        *,
        ahead: int = 0,
    ) -> list[Instruction]:
        """Give a device its next batch, if there is one.

        Args:
            device: that generates.
            iterations: to take it from, in order.
            versions: on which work may begin.
            ahead: how many iterations are trained before the first of these.
        """
        begin = versions.best_of(device.loaded)
        age = 0 if begin is None else versions.age_of(begin)
        for staleness, iteration in enumerate(iterations, age + ahead):
            most = self._most_together(device, iteration)
            own = begin if self._may_begin(iteration, staleness) else None
            found = iteration.queue.take(device.loaded, own, is_stale=staleness > 0)
            if found is not None:
                fragment, next_step, version = found
                batch = self._batch(iteration, fragment, next_step, begin, staleness, most)
                iteration.generate(batch, device.name)
                do = Generate(batch, next_step, batch.num_steps, version, device.name)
                self._fleet.give(device, do)
                return [do]
        return []

    def _most_together(self, device: DeviceState, iteration: Iteration) -> int:
        """Return how many fragments a device takes at once.

        A full batch while much waits, then its share among all that generate (guided
        self-scheduling), but as many as are worth a step's fixed cost.
        """
        work = self._workload
        if work.fragments_per_batch == 1:
            return 1
        rate = self._fleet.generation_rate(device)
        share = len(iteration.queue) * rate / max(rate, self._fleet.generation_speed())
        worth = self._fleet.smallest_batch(device) / work.fragment_size
        return max(1, min(work.fragments_per_batch, ceil(max(share, worth) - 1e-6)))

    def _batch(
        self,
        iteration: Iteration,
        first: Fragment,
        next_step: int,
        begin: int | None,
        staleness: int,
        most: int,
    ) -> Batch:
        """Take up to so many fragments in all that can be denoised with one that was taken.

        Args:
            iteration: to take them from.
            first: that was taken.
            next_step: of it.
            begin: version on which groups may begin on its device.
            staleness: of groups that do.
            most: fragments of a batch.
        """
        fragments, screens = [first], self._workload.screens

        def is_alike(other: Fragment) -> bool:
            kinds = ((own.cost, own.num_steps, screens(own.group)) for own in (first, other))
            return len(set(kinds)) == 1

        while len(fragments) < most:
            own = begin if self._may_begin(iteration, staleness) else None
            found = iteration.queue.take_beside(
                first, next_step, own, is_stale=staleness > 0, is_alike=is_alike
            )
            if found is None:
                break
            fragments.append(found)
        return Batch(tuple(fragments))

    def _generate_early(
        self, device: DeviceState, iterations: Sequence[Iteration], versions: UsableVersions
    ) -> list[Instruction]:
        """Give a device a batch of an iteration that is not trained yet."""
        return self.generate(device, iterations[1:], versions, ahead=1)

    def _may_begin(self, iteration: Iteration, staleness: int) -> bool:
        """Say whether a group may begin that will be trained ``staleness`` iterations later."""
        if staleness <= 0:
            return True
        limit = iteration.stale_limit or self._stale_limit
        return staleness <= limit.iterations and len(iteration.queue.stale) < limit.number

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
        self._fleet.give(device, do)
        return [do]

    def _packs_for(self, device: DeviceState, iteration: Iteration) -> list[Pack]:
        """Take pairs out of the pool: one pack, or without TSP all steps of some samples."""
        if not iteration.pool.num_pairs:
            return []
        most = self._workload.pack_size * iteration.largest_cost  # it fits whatever the samples
        most = min(device.largest_pack or most, most)
        if self._layout.packed:
            load = self._pack_load(device, iteration, most)
            taken = [iteration.pool.take(self._workload.pack_size, load)] if load else []
        else:
            pool, samples = iteration.pool, self._workload.samples_per_pack
            num_steps = iteration.num_trained_of(pool.first_group)
            mean = pool.load / pool.num_pairs
            load = self._fair_load(device, pool.load, min(most, samples * mean), num_steps)
            number = max(1, min(samples, round(load / mean)))
            taken = pool.take_by_step(number, num_steps, most)
        if not taken:
            return []
        packs = [iteration.make_pack(blocks, device.name) for blocks in taken]
        device.trains_until = max(device.trains_until, self._fleet.training_clock)
        device.trains_until += sum(
            self._fleet.costs_of(device).pack(pack.num_pairs, pack.cost) for pack in packs
        )
        return packs

    def _pack_load(self, device: DeviceState, iteration: Iteration, most: float) -> float:
        """Return how much of what is ready makes the next pack; 0: wait for more of it."""
        ready, smallest = iteration.pool.load, 0
        if iteration.awaits_pairs:  # more of them will come
            most_pairs = max(1, min(int(most), self._workload.pack_size))
            smallest = self._fleet.smallest_pack(device, most_pairs)
            if ready < smallest:
                return 0.0
        return min(ready, most, max(smallest, self._fair_load(device, ready, most)))

    def _fair_load(
        self, device: DeviceState, ready: float, most: float, num_steps: int = 1
    ) -> float:
        """Return how large a device's packs are if all trainers finish the ready pairs together.

        Dynamic batching: full packs while much is ready; smaller ones towards the end, when some
        devices would have a pack and others none.

        Args:
            device: that trains them.
            ready: pairs of the mean size that can be trained.
            most: of them in a full pack.
            num_steps: packs that are made together, one of each step.
        """
        if most <= 1 or ready >= 2 * most * num_steps * self._fleet.num("trainer"):
            return most
        seconds = self._fleet.seconds_to_train(ready)
        size = max(seconds * self._fleet.training_rate(device) / num_steps - 1e-6, 1e-6)
        return min(most, ceil(size / ceil(size / most)))

    def switch(self, device: DeviceState, role: Role) -> list[Instruction]:
        """Turn a device to a role: at once if that is free, else by an instruction."""
        device.mode = role
        costs = self._fleet.costs
        seconds = costs.switch_to_rollout if role == "rollout" else costs.switch_to_trainer
        device.trains_until = self._fleet.training_clock + seconds
        self._fleet.file(device)
        if not seconds:
            return []
        do = Switch(device.name, role)
        self._fleet.give(device, do)
        return [do]

    def _leaves_to_faster(self, device: DeviceState, iteration: Iteration) -> bool:
        """Say whether faster devices end the last due fragments sooner, though they are busy.

        Each is, on average, half through a batch. So the slow ones begin what is due later.
        """
        faster = self._fleet.num_faster(device, 1.5) * self._workload.fragments_per_batch
        return 0 < len(iteration.queue) <= faster
