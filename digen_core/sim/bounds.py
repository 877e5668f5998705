"""The least seconds per iteration of any schedule: what is left to gain.

Every device may do all work without switches, steps move between devices at no cost, the future is
known. Jitter is left out: with it an iteration can by luck be faster than its bound.
"""

from dataclasses import dataclass
from math import ceil

from digen_core.sim.scenario import Scenario


def lower_bound(
    scenario: Scenario,
    num_rollout: int | None,
    *,
    stale_share: float = 0.0,
    pack_size: int | None = None,
) -> float:
    """Return seconds per iteration that no schedule on these devices is below.

    Proof; tau_k is when the optimizer step that makes version k ends:
    1. Training of iteration k, and generation of its groups that are not stale, needs version k and
       is over before the next step: it fits between tau_k and tau_(k+1) - opt, and a device that
       waits for the push begins ``push`` later. That bounds its work and its longest chains.
    2. On-policy no pair is trained before a first group has its rewards: device time until then
       that exceeds all of the generation is lost.
    3. A stale group is generated within the two periods before its update. So in a period the
       devices do the work of an iteration and a step, and the servers score an iteration.

    Args:
        scenario: the recipe and its costs.
        num_rollout: devices that wait for the push; the others hold a version when it is made.
            None: all wait.
        stale_share: of the groups of an iteration that may be generated with the version before.
        pack_size: most pairs in a pack; the scenario's if not given.
    """
    facts = _Facts(scenario, num_rollout, pack_size or scenario.pack_size)
    num_stale = int(stale_share * scenario.prompts + 1e-9)
    num_fresh = scenario.prompts - num_stale
    generation, training = scenario.generation_work, scenario.training_work(facts.pack_size)
    fresh_work = generation * num_fresh / scenario.prompts
    lost = 0.0 if num_stale else max(0.0, facts.work_until(facts.first_group) - generation)
    step, speed = scenario.optimizer_step, sum(facts.speeds)
    if num_fresh:
        chain = facts.chain(num_fresh, fresh_work) + step
    else:
        chain = (facts.chain(1, 0.0) + step) / 2
    return max(
        facts.time_of(fresh_work + training + lost) + step,
        (generation + training + step * min(facts.rates)) / speed,
        scenario.prompts * scenario.group_size * scenario.reward_seconds / scenario.reward_servers,
        chain,
    )


@dataclass(frozen=True, slots=True)
class _Facts:
    """What a cluster can do from the moment a version is made."""

    scenario: Scenario
    num_rollout: int | None
    pack_size: int

    @property
    def speeds(self) -> tuple[float, float]:
        """Sum of the rates of the devices that wait for the push, and of those that do not."""
        return self.scenario.speeds(self.num_rollout)

    @property
    def rates(self) -> list[float]:
        """Rates of the kinds of devices that there are, relative to the reference device."""
        if self.num_rollout is None:
            return [1.0]
        return [1 / self.scenario.rollout_slowdown, 1 / self.scenario.trainer_slowdown]

    @property
    def fragment(self) -> float:
        """Least seconds until a fragment is generated, on the fastest device at any time."""
        scenario = self.scenario
        samples = scenario.group_size % scenario.fragment_size or scenario.fragment_size
        work = scenario.reference.fragment(samples, scenario.steps)
        before = 0.0 if self.num_rollout is None else self.rates[-1]
        return _time(work, scenario.push, before, max(self.rates))

    @property
    def first_group(self) -> float:
        """Least seconds until the rewards of a group are known, all after its first fragment."""
        return self.fragment + self.reward(self.scenario.group_size)

    def reward(self, num_samples: int) -> float:
        """Return the least seconds to score samples."""
        return ceil(num_samples / self.scenario.reward_servers) * self.scenario.reward_seconds

    def chain(self, num_groups: int, work: float) -> float:
        """Return the least seconds until the group of the last reward is trained.

        Its pairs are all trained after the rewards of all groups, which come after the first
        fragment, and one of which comes after the last of ``work``, the generation of all of them.
        """
        scenario = self.scenario
        scored = max(
            self.fragment + self.reward(num_groups * scenario.group_size),
            self.time_of(work) + self.reward(1),
        )
        pairs = scenario.pairs_per_group
        largest_part = ceil(pairs / scenario.devices)  # of the device with the most pairs
        trained = max(
            self._training(largest_part) / max(self.rates), self._training(pairs) / sum(self.speeds)
        )
        return scored + trained

    def work_until(self, time: float) -> float:
        """Return the reference seconds of work that all devices do until a time."""
        waiting, others = self.speeds
        return waiting * max(0.0, time - self.scenario.push) + others * time

    def time_of(self, work: float) -> float:
        """Return when all devices have done so many reference seconds of work."""
        waiting, others = self.speeds
        return _time(work, self.scenario.push, others, waiting + others)

    def _training(self, pairs: int) -> float:
        """Return the least reference seconds of one device for these pairs."""
        pack = self.scenario.reference.pack
        return ceil(pairs / self.pack_size) * pack.fixed + pairs * pack.per_item


def _time(work: float, push: float, before: float, after: float) -> float:
    """Return when ``work`` is done at speed ``before`` until the push, then at ``after``."""
    if work <= before * push:
        return work / before if work else 0.0
    return push + (work - before * push) / after
