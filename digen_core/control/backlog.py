"""What is left of an update, in seconds, if no device turns from one role to the other."""

from math import ceil, inf

from digen_core.control.fleet import Fleet
from digen_core.control.iteration import Iteration
from digen_core.control.schedule import Workload


class Backlog:
    """Predicts from what the devices do now; work is shared in proportion to their speed."""

    def __init__(self, fleet: Fleet, workload: Workload) -> None:
        self._fleet = fleet
        self._workload = workload

    def generation(self, iteration: Iteration) -> float:
        """Return when the devices that generate have generated all fragments; inf without any."""
        return self._seconds_to_generate(iteration, self._fleet.generation_speed())

    def training(self, iteration: Iteration) -> float:
        """Return when the devices that train have trained all pairs; inf without any."""
        return self._fleet.seconds_to_train(iteration.pairs_left(self._workload))

    def rollouts_suffice(self, iteration: Iteration) -> bool:
        """Say whether the rollout devices alone keep all trainers busy until the update.

        They do if they generate what is left, and its rewards come, while the trainers train all
        but the last group. A trainer that generates has to turn before.
        """
        workload, costs = self._workload, self._fleet.costs
        speed = self._fleet.generation_speed(of_home=True)
        generation = self._seconds_to_generate(iteration, speed)
        reward = costs.reward * ceil(workload.group_size / costs.reward_servers)
        group = workload.trained_per_group * len(iteration.trained_steps)
        pairs = max(0, iteration.pairs_left(workload) - group)
        return generation + reward <= self._fleet.seconds_to_train(pairs, with_helpers=True)

    def _seconds_to_generate(self, iteration: Iteration, speed: float) -> float:
        steps = iteration.queue.remaining_steps(self._workload.num_steps)
        steps += self._fleet.steps_under_way(iteration.index)
        return steps / speed if speed else inf if steps else 0.0
