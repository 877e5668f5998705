"""Which devices do the other role's work, and when: predicted makespans, switch costs included.

What is left to generate and to train is shared by the devices that do so now (`Backlog`); a
device turns if it is ready, and has done a piece of work, before they are done.
"""

from collections.abc import Sequence
from math import ceil, inf

from digen_core.control.costs import Costs
from digen_core.control.devices.device_state import DeviceState
from digen_core.control.devices.fleet import Fleet
from digen_core.control.iteration import Iteration
from digen_core.control.layout import Layout
from digen_core.control.protocol import Instruction, Pause
from digen_core.control.schedule import Schedule, Workload


class Backlog:
    """What is left of an update, in seconds, if no device turns from one role to the other.

    It predicts from what the devices do now; work is shared in proportion to their speed.
    """

    def __init__(self, fleet: Fleet, workload: Workload) -> None:
        self._fleet = fleet
        self._workload = workload

    def generation(self, iteration: Iteration) -> float:
        """Return when the devices that generate have generated all fragments; inf without any."""
        return self._seconds_to_generate(iteration, self._fleet.generation_speed())

    def training(self, iteration: Iteration) -> float:
        """Return when the devices that train have trained all pairs; inf without any."""
        return self._fleet.seconds_to_train(iteration.load_left(self._workload))

    def rollouts_suffice(self, iteration: Iteration) -> bool:
        """Say whether the rollout devices alone keep all trainers busy until the update.

        They do if they generate what is left, and its rewards come, while the trainers train all
        but the last group. A trainer that generates has to turn before.
        """
        workload, costs = self._workload, self._fleet.costs
        speed = self._fleet.generation_speed(of_home=True)
        generation = self._seconds_to_generate(iteration, speed)
        reward = costs.reward * ceil(workload.group_size / costs.reward_servers)
        group = workload.trained_per_group * iteration.num_trained_steps
        pairs = max(0.0, iteration.load_left(workload) - group)
        return generation + reward <= self._fleet.seconds_to_train(pairs, with_helpers=True)

    def _seconds_to_generate(self, iteration: Iteration, speed: float) -> float:
        load = iteration.queue.load + self._fleet.under_way(iteration.index)
        load += iteration.samples_to_come(self._workload)
        return load / speed if speed else inf if load else 0.0


class Helping:
    """Whether a device turns to the other role now."""

    def __init__(self, fleet: Fleet, workload: Workload, layout: Layout, backlog: Backlog) -> None:
        self._fleet = fleet
        self._workload = workload
        self._layout = layout
        self._backlog = backlog

    def should_train(
        self, device: DeviceState, iterations: Sequence[Iteration], version: int
    ) -> bool:
        """Say whether a device with no fragment of the oldest iteration turns to its pairs.

        It must be ready, and have trained a pack, before the others are done without it. Coming
        back costs nothing while the optimizer steps and the new version is on its way.
        """
        if not (device.may_train and iterations) or self._layout.colocated:
            return False
        if iterations[0].reducing or version not in device.loaded:
            return False
        if not iterations[0].load_left(self._workload):
            return False  # others have all that is left, and it would only turn back
        if device.pace <= 1 and any(own.pausing for own in self._fleet.late()):
            return False  # it goes on with what is late elsewhere
        costs, smallest = self._fleet.costs, self._fleet.costs_of(device).pack(1)
        back = max(0.0, costs.switch_to_rollout - costs.optimizer_step - costs.push)
        return self._backlog.training(iterations[0]) > costs.switch_to_trainer + back + smallest

    def should_generate(
        self,
        device: DeviceState,
        iterations: Sequence[Iteration],
        policy: int,
        another_offered: bool,
    ) -> bool:
        """Say whether a device that trains turns to generation, of groups that begin on a policy.

        Args:
            device: that trains.
            iterations: that have begun, the oldest first.
            policy: the newest version that generates.
            another_offered: whether one more iteration waits to begin.
        """
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
        offers = iterations[0].queue.offers(device.loaded, policy)
        if device.home == "rollout":  # it helped, and fragments came back from elsewhere
            return offers
        return offers and self._pays_to_generate(device, iterations[0])

    def _pays_to_generate(self, device: DeviceState, iteration: Iteration) -> bool:
        """Say whether a trainer without pairs should generate.

        It must be ready, and have done a good part of a fragment, before the others are done
        without it; otherwise it only delays its training. In TAG it prefers pairs that are ready,
        and once it has trained it waits for those that come in time.
        """
        if self._layout.helpers_leave and (
            iteration.pool.num_pairs
            or (iteration.num_packs and self._backlog.rollouts_suffice(iteration))
        ):
            return False
        workload = self._workload
        costs, size = self._fleet.costs_of(device), workload.fragment_size
        fragment = costs.fragment(size, workload.mean_steps)
        switch = self._fleet.costs.switch_to_rollout
        return self._backlog.generation(iteration) > switch + 0.5 * fragment

    def should_leave(
        self, device: DeviceState, iterations: Sequence[Iteration], version: int
    ) -> bool:
        """Say whether a helper goes back to its pairs although fragments are left (TAG).

        All do at once, when the rollout devices suffice: one that counted on the other helpers to
        stay would go when they go, and then the trainers would wait for the rollout devices. Where
        those train too, generation is never what is waited for in the end, and helpers stay.
        """
        if device.home == "rollout" or not self._layout.helpers_leave:
            return False
        if not iterations or not iterations[0].pool.num_pairs or version not in device.loaded:
            return False
        return self._backlog.rollouts_suffice(iterations[0])

    def pauses(self, iterations: Sequence[Iteration], version: int) -> list[Instruction]:
        """Pause the batches of devices that leave, and of helpers that go back to their pairs.

        And what is late, if another device has nothing to do. Others resume them. A batch is
        paused once: how far it is shows only then, and may speak against it.
        """
        pausing = [device for device in self._fleet.leaving() if not device.pausing]
        if self._layout.helpers_leave and iterations and iterations[0].pool.num_pairs:
            helping = self._fleet.to_pause(version)
            if helping and self._backlog.rollouts_suffice(iterations[0]):
                pausing += helping
        pausing += self._to_move(iterations)
        paused: list[Instruction] = []
        for device in pausing:
            if do := device.generating:
                paused.append(Pause(do.batch, device.name))
                device.pausing = True
                self._fleet.file(device)
        return paused

    def _to_move(self, iterations: Sequence[Iteration]) -> list[DeviceState]:
        """Return the devices whose batch is late, as far as others of its version are idle.

        Only of the oldest iteration, which is waited for, and when no fragment of it waits.
        """
        late = self._fleet.late() if iterations and not len(iterations[0].queue) else []
        found: list[DeviceState] = []
        num_pausing = sum(device.pausing for device in late)
        for device in late:
            do = device.generating
            if do is None or device.pausing or do.batch.iteration != iterations[0].index:
                continue
            if self._fleet.num_idle(do.version, device) > num_pausing + len(found):
                found.append(device)
        return found


def choose_helpers(
    fleet: Fleet, workload: Workload, schedule: Schedule, num_trained_steps: float
) -> None:
    """Say which devices may do the other role's work in the coming iteration."""
    layout, costs = schedule.layout, fleet.costs
    if layout.colocated:
        return
    rollouts, trainers = fleet.with_home("rollout"), fleet.with_home("trainer")
    helpers, assistants = schedule.helpers, schedule.assistants
    # With stale groups there is always something to generate: a helper stays with it, where
    # turning costs something. The holder, the first trainer, helps last, and never for good.
    switching = costs.switch_to_rollout + costs.switch_to_trainer
    for_good = bool(schedule.max_stale_share and switching)
    if helpers is None:
        shared = layout.rollouts_train and not for_good
        counts = {"rollouts": len(rollouts), "trainers": len(trainers)}
        helpers = num_helpers(workload, costs, num_trained_steps, shared=shared, **counts)
    if not layout.trainers_help:
        helpers = 0
    if assistants is None:
        assistants = len(rollouts)
    if not layout.rollouts_train:
        assistants = 0
    for place, device in enumerate(trainers):
        device.may_generate = place >= max(len(trainers) - helpers, int(for_good))
        device.may_train = not (device.may_generate and for_good)
        fleet.file(device)
    for place, device in enumerate(rollouts):
        device.may_train = place < assistants or "trainer" in device.device.roles
        fleet.file(device)


def num_helpers(
    workload: Workload,
    costs: Costs,
    num_trained_steps: float,
    *,
    shared: bool,
    rollouts: int,
    trainers: int,
) -> int:
    """Return how many trainers help, on-policy: all of them or none, by the closed forms.

    +tsp takes p + q + (n-1) max(p, q); with help it is h + s + W_t / M, where all devices generate
    for h seconds (docs/scheduling.md). Helping needs h to be at least one fragment.

    Where rollout devices train, too, ``shared``, nothing is left to those who began it. So helping
    pays if turning there and back takes less than p, for which trainers would wait.
    """
    device = next(iter(costs.kinds.values()), None)
    if device is None or not rollouts or not trainers:
        return trainers
    fragment = device.fragment(workload.fragment_size, workload.mean_steps)
    generation = device.generation(workload)
    training = device.training(workload, num_trained_steps, workload.pack_size)
    p = generation / (rollouts * workload.num_groups)
    q = training / (trainers * workload.num_groups)
    switching = costs.switch_to_rollout + costs.switch_to_trainer
    if shared:
        return trainers if switching < p else 0
    share = rollouts / (rollouts + trainers)
    help_seconds = share * (generation / rollouts + q - switching - training / trainers)
    without = p + q + (workload.num_groups - 1) * max(p, q)
    with_help = help_seconds + switching + training / trainers
    return trainers if help_seconds >= fragment and with_help < without else 0
