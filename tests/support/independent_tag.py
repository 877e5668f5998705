"""TAG simulated without the controller: an oracle for its decisions, step by step.

Equal devices, on-policy; the rules of docs/scheduling.md, each applied at every denoising step:

| a rollout device that is free | takes the first fragment that nobody generates, group-major |
| a trainer that is free | takes ready pairs, else generates if it may and that pays |
| a helper at a step boundary | goes back, once pairs are ready and the rollout devices suffice |
"""

import heapq
from collections.abc import Callable
from itertools import count
from math import ceil
from random import Random

from digen_core.sim.scenario import Scenario

Task = tuple[int, int, int, int]  # group, first sample, samples, next step


class IndependentTag:
    """One iteration: from the optimizer step before it to its own."""

    def __init__(self, scenario: Scenario, num_rollout: int, helpers: int, seed: int) -> None:
        s = self.scenario = scenario
        self.num_rollout, self.num_trainers = num_rollout, s.devices - num_rollout
        self.first_helper = s.devices - helpers
        self.random = Random(seed)
        self.now, self.order = 0.0, count()
        self.events: list[tuple[float, int, Callable[..., None], tuple[object, ...]]] = []
        self.queue: list[Task] = [
            (group, first, min(s.fragment_size, s.group_size - first), 0)
            for group in range(s.prompts)
            for first in range(0, s.group_size, s.fragment_size)
        ]
        self.unscored = [s.group_size] * s.prompts
        self.servers = s.reward_servers
        self.waiting: list[tuple[int, int]] = []
        self.ready, self.untrained = 0, s.num_pairs
        self.generating: dict[int, Task] = {}
        self.idle: set[int] = set()
        self.ready_for_steps = [device < num_rollout for device in range(s.devices)]

    def run(self) -> float:
        """Return its seconds."""
        for device in range(self.scenario.devices):
            wait = self.scenario.push if device < self.num_rollout else 0.0
            self.after(wait, self.free, device)
        while self.untrained:
            self.now, _, act, arguments = heapq.heappop(self.events)
            act(*arguments)
        return self.now + self.scenario.optimizer_step * self.jitter()

    def jitter(self) -> float:
        sigma = self.scenario.jitter
        return self.random.lognormvariate(-0.5 * sigma**2, sigma)

    def after(self, seconds: float, act: Callable[..., None], *arguments: object) -> None:
        heapq.heappush(self.events, (self.now + seconds, next(self.order), act, arguments))

    # --- decisions ------------------------------------------------------------------------

    def free(self, device: int) -> None:
        """Give a free device something to do."""
        self.idle.discard(device)
        helping = self.ready_for_steps[device]
        if device < self.num_rollout and self.queue:
            self.denoise(device, heapq.heappop(self.queue), 0.0)
        elif device >= self.num_rollout and self.ready and not (helping and self.stays()):
            self.train(device)
        elif device >= self.first_helper and self.queue and (helping or self.pays()):
            wait = 0.0 if helping else self.scenario.helper_in * self.jitter()
            self.ready_for_steps[device] = True
            self.denoise(device, heapq.heappop(self.queue), wait)
        else:
            self.idle.add(device)

    def stays(self) -> bool:
        """Whether a helper with ready pairs generates on: fragments are left, and it is needed."""
        return bool(self.queue) and not self.rollouts_suffice()

    def pays(self) -> bool:
        """Whether generation takes the others longer than both switches, and the rollouts too."""
        s, helping = self.scenario, sum(device >= self.num_rollout for device in self.generating)
        seconds = self.seconds_left(self.queue) / (self.num_rollout + helping)
        return seconds > s.helper_in + s.helper_out and not self.rollouts_suffice()

    def rollouts_suffice(self) -> bool:
        """Whether the rollout devices generate the rest while all but the last group is trained."""
        s = self.scenario
        left = self.seconds_left([*self.queue, *self.generating.values()])
        pair = s.reference.pack(s.pack_size) / s.pack_size / self.num_trainers
        reward = s.reward_seconds * ceil(s.group_size / s.reward_servers)
        trained = s.helper_out + (self.untrained - s.num_pairs // s.prompts) * pair
        return left / self.num_rollout + reward <= trained

    def seconds_left(self, tasks: list[Task]) -> float:
        step = self.scenario.reference.step
        return sum((self.scenario.steps - done) * step(samples) for _, _, samples, done in tasks)

    # --- work -----------------------------------------------------------------------------

    def denoise(self, device: int, task: Task, wait: float) -> None:
        self.generating[device] = task
        costs, (_, _, samples, done) = self.scenario.reference, task
        seconds = costs.step(samples) * self.jitter()
        if done == self.scenario.steps - 1:
            seconds += costs.decode(samples) * self.jitter()
        self.after(wait + seconds, self.denoised, device)

    def denoised(self, device: int) -> None:
        group, first, samples, done = self.generating.pop(device)
        task = (group, first, samples, done + 1)
        if done + 1 == self.scenario.steps:
            for _ in range(samples):
                heapq.heappush(self.waiting, (group, next(self.order)))
            self.serve()
        elif device < self.num_rollout or not self.ready or not self.rollouts_suffice():
            self.denoise(device, task, 0.0)
            return
        else:
            heapq.heappush(self.queue, task)
        self.free(device)
        self.wake()

    def serve(self) -> None:
        while self.waiting and self.servers:
            group, _ = heapq.heappop(self.waiting)
            self.servers -= 1
            self.after(self.scenario.reward_seconds * self.jitter(), self.scored, group)

    def scored(self, group: int) -> None:
        self.servers += 1
        self.unscored[group] -= 1
        if not self.unscored[group]:
            self.ready += self.scenario.num_pairs // self.scenario.prompts
            self.wake()
        self.serve()

    def wake(self) -> None:
        for device in sorted(self.idle):
            self.free(device)

    def train(self, device: int) -> None:
        s, pairs = self.scenario, min(self.scenario.pack_size, self.ready)
        self.ready -= pairs
        wait = s.helper_out * self.jitter() if self.ready_for_steps[device] else 0.0
        self.ready_for_steps[device] = False
        self.after(wait + s.reference.pack(pairs) * self.jitter(), self.trained, device, pairs)

    def trained(self, device: int, pairs: int) -> None:
        self.untrained -= pairs
        self.free(device)


def seconds_of_tag(scenario: Scenario, num_rollout: int) -> float:
    """Return the seconds of an iteration with the best number of helpers, mean of three seeds."""
    trainers = scenario.devices - num_rollout
    return min(
        sum(IndependentTag(scenario, num_rollout, helpers, seed).run() for seed in range(3)) / 3
        for helpers in range(trainers + 1)
    )
