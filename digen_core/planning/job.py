"""A config on the devices of a cluster, as a problem to plan."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil
from statistics import fmean
from typing import Final

import numpy as np

from digen_core.config.run import RunConfig
from digen_core.control.costs import Asks, Costs
from digen_core.control.layout import LAYOUTS, LayoutName
from digen_core.control.protocol import Device
from digen_core.control.schedule import Screening, Workload, relative_costs
from digen_core.data.prompts import Prompt
from digen_core.errors import UserError
from digen_core.sim.deal import BOTH, deal
from digen_core.sim.problem import MIN_ROLLOUT_SHARE
from digen_core.strict import YEAR

MOST_ITERATIONS: Final = 200  # of a run, whose steps are counted to know their mean


@dataclass(frozen=True, slots=True)
class Job:
    """A :class:`~digen_core.sim.problem.Problem`: what a run does, on which devices."""

    workload: Workload
    trained_steps: int
    fleet: tuple[Device, ...]  # with the roles that they may have
    known_costs: Costs
    jitter: float = 0.0
    pulls_at_once: int | None = None
    home: str | None = None  # site where all devices train that may do both; None: any

    @classmethod
    def of(
        cls,
        config: RunConfig,
        fleet: tuple[Device, ...],
        costs: Costs,
        prompts: Sequence[Prompt] = (),
    ) -> "Job":
        """Return the job of a config on some devices.

        Args:
            config: of the run.
            fleet: its devices.
            costs: what work costs there.
            prompts: that it trains on, where these may have their own steps.

        Raises:
            UserError: nothing can take what its work is said to cost.
        """
        check_costs(fleet, costs)
        return cls(
            typical_workload(config, prompts),
            config.num_trained_steps,
            fleet,
            costs_for(config, costs),
            pulls_at_once=config.pulls_at_once,
        )

    @property
    def devices(self) -> int:
        """Devices in all (P)."""
        return len(self.fleet)

    @property
    def sites(self) -> set[str]:
        """Where its devices are."""
        return {device.site for device in self.fleet}

    @property
    def unforeseen(self) -> dict[str, float]:
        """Nothing is: devices take what is known."""
        return {}

    @property
    def splits(self) -> range:
        """How many devices may generate, the others train; empty with a single device."""
        generating = [device for device in self.fleet if "rollout" in device.roles]
        fixed = sum(
            len(device.roles) == 1 or self.home not in (None, device.site) for device in generating
        )
        most = min(len(generating), self.devices - 1)
        enough = min(most, ceil(MIN_ROLLOUT_SHARE * self.devices))
        return range(max(fixed, enough, 1), most + 1)

    @property
    def homes(self) -> list[str]:
        """Sites at which all training may be, where there are links between several."""
        found = {device.site for device in self.fleet if "trainer" in device.roles}
        return sorted(found) if self.known_costs.links and len(found) > 1 else []

    @property
    def can_colocate(self) -> bool:
        """Whether every device may do both."""
        return all(device.roles == BOTH for device in self.fleet)

    def cluster(self, num_rollout: int | None) -> tuple[Device, ...]:
        """Return the devices of a split, those that generate first; None: all do both.

        Of the devices that may do both, those generate that are better at it than at training, and
        those that are not at home.
        """
        if num_rollout is None:
            return self.fleet
        return deal(self.fleet, num_rollout, self.workload, self.known_costs.kinds, self.home)

    def costs(self, num_rollout: int | None) -> Costs:
        """Return what everything costs, whatever the split."""
        return self.known_costs


def check_costs(fleet: Sequence[Device], costs: Costs) -> None:
    """Check that what devices do takes some time, and no more than anybody waits for.

    Raises:
        UserError: it does not.
    """
    for kind in sorted({device.kind for device in fleet}):
        own = costs.kinds[kind]
        lines = {"a denoising step": own.step, "a pack": own.pack, "decoding": own.decode}
        for what, line in lines.items():
            if not (line(1) or line is own.decode) or line(1) > YEAR:
                raise UserError(
                    f"costs: on kind {kind} {what} takes {line(1):g} seconds, which no plan can be "
                    "made of; use other costs or speeds in the cluster file, or a schedule.profile "
                    "of a run that has generated and trained"
                )


def costs_for(config: RunConfig, costs: Costs) -> Costs:
    """Return costs with those of asking the reference policy where the config has it asked."""
    asked = (config.velocities_with(references=own) for own in (False, True))
    return costs.asking(config.who_asks_reference, Asks(*asked))


def workload_of(config: RunConfig) -> Workload:
    """Return the shape of an iteration."""
    num_groups, screening = config.rollout.prompts_per_iteration, config.rollout.screening
    return Workload(
        num_groups=num_groups,
        group_size=config.rollout.group_size,
        fragment_size=config.fragment_size,
        batch_size=config.rollout.batch_size or 1,
        num_steps=config.rollout.num_steps,
        pack_size=config.train.pack_size,
        samples_per_pack=config.train.pack_size,
        trained_per_group=config.trained_per_group,
        advantages_need_all_groups=config.algorithm.needs_all_rewards,
        group_costs=group_costs(config, 0)[:num_groups],
        num_updates=config.train.updates_per_iteration,
        epochs=config.train.epochs,
        dealt_by=config.train.dealt_by,
        screening=Screening(screening.candidates, screening.num_steps) if screening else None,
    )


def typical_workload(config: RunConfig, prompts: Sequence[Prompt] = ()) -> Workload:
    """Return the shape of an iteration like those of a run, in the mean.

    Where iterations take unequally many steps its groups take the mean number, rounded; where
    prompts do, its groups take those of prompts at even distances, from the fewest steps to the
    most, by weight, in a random order. Where iterations have other sizes, likewise.

    Args:
        config: of the run.
        prompts: that it trains on; none: all take the config's steps.
    """
    shape = replace(workload_of(config), group_costs=typical_costs(config))
    if config.algorithm.shortens:
        total, most = config.num_iterations, MOST_ITERATIONS
        iterations = [place * total // min(total, most) for place in range(min(total, most))]
        taken = group_steps(config, iterations, [Prompt("")] * len(iterations))
        return replace(shape, num_steps=round(fmean(taken)))
    drawn = sorted(
        (prompt for prompt in prompts if prompt.weight),
        key=lambda prompt: prompt.num_steps or shape.num_steps,
    )
    if not drawn:
        return shape
    ends = np.cumsum([prompt.weight for prompt in drawn])
    middles = (np.arange(shape.num_groups) + 0.5) / shape.num_groups * ends[-1]
    order = np.random.default_rng(config.seed).permutation(np.searchsorted(ends, middles))
    steps = group_steps(config, [0] * shape.num_groups, [drawn[place] for place in order])
    return with_steps(shape, config, steps)


def typical_costs(config: RunConfig) -> tuple[float, ...]:
    """Return what a sample of each group costs in an iteration that takes what they do in the mean.

    Empty where all cost the same. Where iterations do not have the same sizes in turn, its groups
    have those at even distances, from the cheapest to the dearest, in a random order.
    """
    count, sizes = config.rollout.prompts_per_iteration, config.model.sizes
    if not sizes or count % len(sizes) == 0:
        return group_costs(config, 0)[:count]
    from digen_core.planning.sizes import costs_of_sizes  # torch, as below

    found = costs_of_sizes(config.model)
    places = np.random.default_rng(config.seed).permutation(count)
    ranked = sorted(found[size] for size in sizes)
    return relative_costs(ranked[(2 * own + 1) * len(sizes) // (2 * count)] for own in places)


def with_steps(workload: Workload, config: RunConfig, steps: Sequence[int]) -> Workload:
    """Return the shape of an iteration whose groups take so many steps; none: the config's."""
    trained = tuple(map(config.algorithm.num_trained, steps))
    return replace(workload, group_steps=tuple(steps), group_trained=trained)


def group_steps(
    config: RunConfig, iterations: Sequence[int], prompts: Sequence[Prompt]
) -> tuple[int, ...]:
    """Return the denoising steps of each prompt's samples; empty where all are the config's.

    Args:
        config: of the run.
        iterations: in which each prompt is.
        prompts: of groups.
    """
    most = config.rollout.num_steps
    if config.algorithm.shortens:
        from digen_core.rollout.steps import num_steps_taken  # torch, as below

        taken = {index: num_steps_taken(config, index) for index in {*iterations}}
        return tuple(taken[index] for index in iterations[: len(prompts)])
    steps = tuple(prompt.num_steps or most for prompt in prompts)
    return () if set(steps) <= {most} else steps


def group_costs(
    config: RunConfig, iteration: int, num_images: Sequence[int] = ()
) -> tuple[float, ...]:
    """Return what a sample of each group of an iteration costs, in those of the mean size.

    Those that may replace others come last. Empty where all samples cost the same.

    Args:
        config: of the run.
        iteration: whose groups.
        num_images: source images of each group's prompt; none: all have the most there are.
    """
    if not (config.model.sizes or (num_images and config.model.num_source_images > 1)):
        return ()
    from digen_core.planning.sizes import cost_of_sample  # torch, which most plans do without

    groups = range(config.rollout.num_drawn)
    return tuple(
        cost_of_sample(
            config.model,
            config.size_of(iteration, group),
            num_images[group] if num_images else None,
        )
        for group in groups
    )


def layouts_for(config: RunConfig) -> list[LayoutName]:
    """Return the layouts that a config allows, whatever it names itself.

    Stale groups are the user's decision: only with schedule.max_stale_share above 0.
    """
    whole_batch = config.algorithm.needs_all_rewards
    return [
        name
        for name, layout in LAYOUTS.items()
        if not (layout.stale and not config.schedule.stale_share)
        and not (layout.pipelined and whole_batch)
    ]
