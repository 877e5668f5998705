"""What is left of an update, in seconds, if no device turns from one role to the other."""

from collections.abc import Iterable, Sequence
from math import ceil, inf

from digen_core.control.fleet import DeviceState, Fleet
from digen_core.control.iteration import Iteration
from digen_core.control.packing import seconds_to_share
from digen_core.control.protocol import Generate
from digen_core.control.schedule import Workload


class Backlog:
    """Predicts from what the devices do now; work is shared in proportion to their speed."""

    def __init__(self, fleet: Fleet, workload: Workload) -> None:
        self._fleet = fleet
        self._workload = workload

    def generation(self, iteration: Iteration) -> float:
        """Return when the devices that generate have generated all fragments; inf without any."""
        return self._seconds_to_generate(self._fleet.with_mode("rollout"), iteration)

    def training(self, iteration: Iteration) -> float:
        """Return when the devices that train have trained all pairs; inf without any."""
        return self.seconds_to_train(iteration.pairs_left(self._workload))

    def seconds_to_train(self, pairs: int) -> float:
        """Return how long the devices that train need for pairs, after what they do already."""
        return self._seconds_to_share(pairs, self._fleet.with_mode("trainer"))

    def rollouts_suffice(self, iteration: Iteration) -> bool:
        """Say whether the rollout devices alone keep all trainers busy until the update.

        They do if they generate what is left, and its rewards come, while the trainers train all
        but the last group. A trainer that generates has to turn before.
        """
        workload, costs = self._workload, self._fleet.costs
        generation = self._seconds_to_generate(self._fleet.with_home("rollout"), iteration)
        reward = costs.reward * ceil(workload.group_size / costs.reward_servers)
        group = workload.trained_per_group * len(iteration.trained_steps)
        pairs = max(0, iteration.pairs_left(workload) - group)
        return generation + reward <= self._seconds_to_share(
            pairs, self._fleet.with_home("trainer")
        )

    def _seconds_to_generate(self, devices: Sequence[DeviceState], iteration: Iteration) -> float:
        steps = iteration.queue.remaining_steps(self._workload.num_steps)
        for device in self._fleet:
            for do in device.queue[:1]:
                if isinstance(do, Generate) and do.fragment.iteration == iteration.index:
                    steps += (do.end_step - do.first_step) // 2  # half done, on average
        speed = sum(map(self._fleet.generation_rate, devices))
        return steps / speed if speed else inf if steps else 0.0

    def _seconds_to_share(self, pairs: int, devices: Iterable[DeviceState]) -> float:
        free_in = [self._free_in(device) for device in devices]
        rates = [self._fleet.training_rate(device) for device in devices]
        return seconds_to_share(pairs, free_in, rates) if rates else inf if pairs else 0.0

    def _free_in(self, device: DeviceState) -> float:
        """Return in how many seconds a device can train more."""
        if device.mode == "rollout":
            return self._fleet.costs.switch_to_trainer
        return max(0.0, device.trains_until - self._fleet.training_clock)
