"""The least seconds per iteration of any schedule: what is left to gain.

Every device may do all work without switches, steps move between devices at no cost, the future is
known. Jitter is left out: with it an iteration can by luck be faster than its bound.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import ceil

from digen_core.control.fragments import fragments_of, rounded_cost
from digen_core.control.schedule import generation_costs
from digen_core.sim.least_time import Group, Work, least_seconds
from digen_core.sim.scenario import Scenario


def groups_of(
    scenario: Scenario, num_rollout: int | None = None, *, wait: float = 0.0, cost: float = 1.0
) -> list[Group]:
    """Return the devices of a scenario, the equal ones together.

    Those that denoise faster than is predicted are taken to do all of the generation so.

    Args:
        scenario: with the devices.
        num_rollout: devices that generate; None: all do both.
        wait: seconds until those that generate begin.
        cost: of a pair, in those of the mean group.
    """
    devices = Counter(
        (device.kind, wait if "rollout" in device.roles else 0.0)
        for device in scenario.cluster(num_rollout)
    )
    inventory = scenario.inventory
    return [
        Group(
            num,
            kind.generation * min(1.0, kind.unforeseen),
            scenario.a * kind.pack,
            scenario.c * kind.pair * cost,
            waits,
        )
        for (name, waits), num in devices.items()
        for kind in (inventory[name],)
    ]


@dataclass(frozen=True, slots=True)
class _Part:
    """What the samples of one of an iteration's groups take."""

    cost: float  # of a step, and of a pair, in those of the mean group
    steps: int
    pairs: int  # of the group, in all epochs


def _parts(scenario: Scenario) -> list[_Part]:
    """Return the groups of an iteration, with costs as the controller takes them."""
    work, number = scenario.workload, scenario.prompts
    costs = list(map(rounded_cost, work.group_costs)) or [1.0] * number
    steps = work.group_steps or (scenario.steps,) * number
    trained = work.group_trained or (scenario.trained_steps,) * number
    times = scenario.trained_per_group * scenario.epochs
    return [
        _Part(cost, num_steps, num_trained * times)
        for cost, num_steps, num_trained in zip(costs, steps, trained, strict=True)
    ]


def _generation(scenario: Scenario, parts: Sequence[_Part]) -> list[float]:
    """Return the seconds that the reference device needs to generate each group."""
    num_samples, num_steps = scenario.group_size, sum(own.steps for own in parts)

    def of_samples(own: _Part, cost: float) -> float:
        return num_samples * cost * (own.steps * scenario.d1 + scenario.vae)

    fixed = scenario.generation_work - sum(of_samples(own, 1.0) for own in parts)
    return [own.steps / num_steps * fixed + of_samples(own, own.cost) for own in parts]


def _mean_cost(parts: Sequence[_Part]) -> float:
    """Return what a pair costs, in the mean of all."""
    return sum(own.cost * own.pairs for own in parts) / sum(own.pairs for own in parts)


def floor_of(scenario: Scenario) -> float:
    """Return the seconds of an iteration in which no device waits, and each does what it can best.

    On P equal devices (W_g + W_t(b)) / P.
    """
    pairs, parts = scenario.num_pairs, _parts(scenario)
    packs = ceil(pairs / scenario.pack_size)
    work = Work(sum(_generation(scenario, parts)), pairs, packs, scenario.pack_size)
    return least_seconds(groups_of(scenario, cost=_mean_cost(parts)), work)


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
    pairs, fresh_work = scenario.num_pairs, facts.generation(num_fresh)
    generation = facts.generation(scenario.prompts)
    first_group = 0.0 if num_stale else facts.first_group
    step = scenario.optimizer_step
    if num_fresh:
        chain = facts.chain(num_fresh, fresh_work) + step
    else:
        chain = (facts.chain(1, 0.0) + step) / 2
    fresh = least_seconds(facts.groups, facts.work(fresh_work, pairs), pairs_from=first_group)
    return max(
        fresh + step,
        least_seconds(
            groups_of(scenario, cost=_mean_cost(facts.parts)),
            facts.work(generation, pairs, step=step),
        ),
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
    def parts(self) -> list[_Part]:
        """The groups of an iteration."""
        return _parts(self.scenario)

    @cached_property
    def groups(self) -> list[Group]:
        """Its devices, those that generate waiting for the push."""
        cost = _mean_cost(self.parts)
        return groups_of(self.scenario, self.num_rollout, wait=self.scenario.push, cost=cost)

    def generation(self, num_groups: int) -> float:
        """Return the least seconds of the reference device to generate so many groups."""
        return sum(sorted(_generation(self.scenario, self.parts))[:num_groups])

    @cached_property
    def _fragment_work(self) -> float:
        """Least seconds of the reference device for a fragment, however dear groups are cut."""
        workload, reference = self.scenario.workload, self.scenario.reference
        costs = [own.cost for own in self.parts]
        dearness = generation_costs(costs, workload.group_steps) or [1.0] * len(costs)
        found = {
            (last.num_samples, own.cost, own.steps)
            for own, dear in set(zip(self.parts, dearness, strict=True))
            for cut in {1.0, dear}
            for *_, last in [fragments_of(workload, 0, 0, num_steps=own.steps, dear=cut)]
        }
        return min(
            steps * reference.step(number, cost) + reference.decode(number, cost)
            for number, cost, steps in found
        )

    @property
    def fragment(self) -> float:
        """Least seconds until a fragment is generated, on the fastest device at any time."""
        work, push = self._fragment_work, self.scenario.push
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
        return scored + min(map(self._training, {(own.pairs, own.cost) for own in self.parts}))

    def _training(self, group: tuple[int, float]) -> float:
        """Return the least seconds to train a group, of so many pairs, each of some cost."""
        pairs, cost = group
        groups = groups_of(self.scenario, cost=cost)
        largest_part = ceil(pairs / self.scenario.devices)  # of the device with the most pairs
        packs = ceil(largest_part / self.pack_size)
        alone = min(packs * own.pack + largest_part * own.pair for own in groups)
        return max(alone, least_seconds(groups, self.work(0.0, pairs)))
