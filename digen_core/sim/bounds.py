"""The least seconds per iteration of any schedule: what is left to gain.

Every device may do all work without switches, steps move between devices at no cost, the future is
known. Jitter is left out: with it an iteration can by luck be faster than its bound.
"""

from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from math import ceil

from digen_core.sim.least_time import Group, Work, least_seconds
from digen_core.sim.scenario import Scenario


def groups_of(
    scenario: Scenario, num_rollout: int | None = None, *, wait: float = 0.0
) -> list[Group]:
    """Return the devices of a scenario, the equal ones together.

    Args:
        scenario: with the devices.
        num_rollout: devices that generate; None: all do both.
        wait: seconds until those that generate begin.
    """
    devices = Counter(
        (device.kind, wait if "rollout" in device.roles else 0.0)
        for device in scenario.cluster(num_rollout)
    )
    inventory = scenario.inventory
    return [
        Group(num, kind.generation, scenario.a * kind.pack, scenario.c * kind.pair, waits)
        for (name, waits), num in devices.items()
        for kind in (inventory[name],)
    ]


def floor_of(scenario: Scenario) -> float:
    """Return the seconds of an iteration in which no device waits, and each does what it can best.

    On P equal devices (W_g + W_t(b)) / P.
    """
    pairs = scenario.num_pairs
    packs = ceil(pairs / scenario.pack_size)
    work = Work(scenario.generation_work, pairs, packs, scenario.pack_size)
    return least_seconds(groups_of(scenario), work)


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
    generation, pairs = scenario.generation_work, scenario.num_pairs
    fresh_work = generation * facts.least_share(num_fresh)
    first_group = 0.0 if num_stale else facts.first_group
    step = scenario.optimizer_step
    if num_fresh:
        chain = facts.chain(num_fresh, fresh_work) + step
    else:
        chain = (facts.chain(1, 0.0) + step) / 2
    fresh = least_seconds(facts.groups, facts.work(fresh_work, pairs), pairs_from=first_group)
    return max(
        fresh + step,
        least_seconds(groups_of(scenario), facts.work(generation, pairs, step=step)),
        scenario.prompts * scenario.group_size * scenario.reward_seconds / scenario.reward_servers,
        chain,
    )


@dataclass(frozen=True)
class _Facts:
    """What a cluster can do from the moment a version is made."""

    scenario: Scenario
    num_rollout: int | None
    pack_size: int

    @cached_property
    def groups(self) -> list[Group]:
        """Its devices, those that generate waiting for the push."""
        return groups_of(self.scenario, self.num_rollout, wait=self.scenario.push)

    def least_share(self, num_groups: int) -> float:
        """Return the least share of the generation that so many groups are."""
        steps = sorted(self.scenario.workload.group_steps)
        if not steps:
            return num_groups / self.scenario.prompts
        return sum(steps[:num_groups]) / sum(steps)

    @property
    def fragment(self) -> float:
        """Least seconds until a fragment is generated, on the fastest device at any time."""
        scenario, push = self.scenario, self.scenario.push
        samples = scenario.group_size % scenario.fragment_size or scenario.fragment_size
        steps = min(scenario.workload.group_steps, default=scenario.steps)
        work = scenario.reference.fragment(samples, steps)
        before = max((1 / own.generation for own in self.groups if not own.wait), default=0.0)
        after = max(1 / own.generation for own in self.groups)
        return work / before if work <= before * push else push + (work - before * push) / after

    @property
    def first_group(self) -> float:
        """Least seconds until the rewards of a group are known, all after its first fragment."""
        return self.fragment + self.reward(self.scenario.group_size)

    def reward(self, num_samples: int) -> float:
        """Return the least seconds to score samples."""
        return ceil(num_samples / self.scenario.reward_servers) * self.scenario.reward_seconds

    def work(self, generation: float, pairs: int = 0, *, step: float = 0.0) -> Work:
        """Return work in packs that are as full as can be."""
        return Work(generation, pairs, ceil(pairs / self.pack_size), self.pack_size, step)

    def chain(self, num_groups: int, work: float) -> float:
        """Return the least seconds until the group of the last reward is trained.

        Its pairs are all trained after the rewards of all groups, which come after the first
        fragment, and one of which comes after the last of ``work``, the generation of all of them.
        """
        scenario = self.scenario
        generated = least_seconds(self.groups, self.work(work))
        scored = max(
            self.fragment + self.reward(num_groups * scenario.group_size),
            generated + self.reward(1),
        )
        pairs = scenario.pairs_per_group
        largest_part = ceil(pairs / scenario.devices)  # of the device with the most pairs
        packs = ceil(largest_part / self.pack_size)
        alone = min(packs * own.pack + largest_part * own.pair for own in self.groups)
        return scored + max(alone, least_seconds(groups_of(scenario), self.work(0.0, pairs)))
