"""The planner: the layout, split and sizes that are the fastest for a job.

Closed forms rank fragment and pack sizes for each layout. One simulation of each of the best ones
ranks the layouts. The search for split and mechanisms is left to the layouts near the fastest.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import ceil, inf
from operator import itemgetter

from digen_core.config.run import RunConfig
from digen_core.control.layout import LAYOUTS, LayoutName
from digen_core.errors import UserError
from digen_core.planning.job import Job, layouts_for
from digen_core.planning.search import Choice, Fixed, Plan, mixings, search, simulate_choice
from digen_core.sim.closed_forms import FORMULAS, Terms

NUM_SIZES = 2  # fragment and pack sizes that are simulated for a layout, and the job's own
NUM_SPLITS = 12  # at most, that rank a size
NUM_SEARCHED = 2  # layouts, and colocated-strong
BASELINE: LayoutName = "colocated-strong"


@dataclass(frozen=True, slots=True)
class JobPlan:
    """The fastest plan of a layout that was found, and the job with the sizes that it needs."""

    job: Job
    plan: Plan

    @property
    def layout(self) -> LayoutName:
        """Its layout."""
        return self.plan.choice.layout

    @property
    def seconds(self) -> float:
        """Predicted, per iteration."""
        return self.plan.seconds


def plan_job(
    job: Job,
    layouts: Iterable[LayoutName],
    *,
    fixed: Fixed | None = None,
    max_stale_share: float = 0.0,
    max_staleness: int = 1,
    search_sizes: bool = False,
    largest_fragment: int | None = None,
    may_leave_out: bool = False,
) -> list[JobPlan]:
    """Return the plans of the most promising layouts, the fastest first.

    The fastest is never slower than colocated-strong, if that is among the layouts.

    Args:
        job: what is to be done, where, and what it costs.
        layouts: to choose from; those that the devices' roles rule out are left out.
        fixed: quantities to keep.
        max_stale_share: share of stale groups in layouts that have them; others have none.
        max_staleness: versions that these may be behind at most; the plan has the least that pays.
        search_sizes: choose fragment and pack sizes too, packs up to the job's.
        largest_fragment: that may be chosen; None: any.
        may_leave_out: use the devices of one site alone where that is faster than its links.

    Raises:
        ValueError: nothing is left to choose from.
    """
    fixed = fixed or Fixed()
    if max(fixed.helpers or 0, fixed.assistants or 0) >= job.devices:
        raise ValueError(f"no split of {job.devices} devices has {fixed}")
    most = (largest_fragment or job.workload.group_size) if search_sizes else 0
    possible = [layout for layout in layouts if _splits(job, layout)]
    if not possible:
        raise ValueError(f"{job.devices} devices with these roles can do none of {list(layouts)}")
    placed = [(own, _sizes_of(own, most)) for own in _placements(job, may_leave_out)]
    sized = {}
    for layout in possible:
        stale_share = max_stale_share if LAYOUTS[layout].stale else 0.0
        sized[layout] = min(
            (
                _fastest_size(own, others, layout, stale_share, max_staleness)
                for own, others in placed
                if _splits(own, layout)
            ),
            key=itemgetter(0),
        )
    ranking = sorted(possible, key=lambda layout: sized[layout][0])
    searched = ranking[:NUM_SEARCHED] + [x for x in ranking[NUM_SEARCHED:] if x == BASELINE]
    plans = []
    for layout in searched:
        own, share = sized[layout][1], max_stale_share if LAYOUTS[layout].stale else None
        own_fixed = replace(fixed, stale_share=share, most_staleness=max_staleness)
        found = search(own, layout, own_fixed)
        plans.append(JobPlan(own, found))
    return sorted(plans, key=lambda plan: (plan.seconds, plan.layout != BASELINE))


def plan_config(
    job: Job,
    config: RunConfig,
    *,
    search_sizes: bool = False,
    largest_fragment: int | None = None,
    helps: bool = True,
    assists: bool = True,
    may_leave_out: bool = False,
) -> list[JobPlan]:
    """Return the plans of a job with what its config allows and fixes, the fastest first.

    Args:
        job: of the config.
        config: of the run.
        search_sizes: as in ``plan_job``.
        largest_fragment: as in ``plan_job``.
        helps: whether devices that train have room for generating beside it.
        assists: whether devices that generate have room for training beside it.
        may_leave_out: as in ``plan_job``.

    Raises:
        UserError: nothing is left to choose from.
    """
    schedule = config.schedule
    fixed = Fixed(
        helpers=schedule.num_helpers if helps else 0,
        assistants=schedule.num_assistants if assists else 0,
    )
    try:
        return plan_job(
            job,
            _layouts(config, mixes=helps and assists),
            fixed=fixed,
            max_stale_share=schedule.stale_share,
            max_staleness=schedule.max_staleness,
            search_sizes=search_sizes,
            largest_fragment=largest_fragment,
            may_leave_out=may_leave_out,
        )
    except ValueError as error:
        raise UserError(str(error)) from error


def estimated_seconds(job: Job, config: RunConfig, *, helps: bool, assists: bool) -> float:
    """Return the seconds of a job in its fastest layout by formula; infinite if none is possible.

    Args:
        job: of the config.
        config: of the run.
        helps: as in ``plan_config``.
        assists: as in ``plan_config``.
    """
    best = inf
    for name in _layouts(config, mixes=helps and assists):
        layout = LAYOUTS[name]
        share = config.schedule.stale_share if layout.stale else 0.0
        without_help = (layout.trainers_help and not helps) or (
            layout.rollouts_train and not assists
        )
        # The formulas of layouts with help suppose it; without it they are others of the list.
        if _splits(job, name) and (share or not without_help):
            best = min(best, _estimate(job, name, share)[0])
    return best


def _layouts(config: RunConfig, *, mixes: bool) -> list[LayoutName]:
    """Return the layouts that a config allows, and its devices' memory."""
    return [name for name in layouts_for(config) if mixes or not LAYOUTS[name].colocated]


def sizes(job: Job) -> Iterator[tuple[int, int]]:
    """Yield (fragment size, pack size): divisors of the group size, and 1, 2, 4, ... pairs."""
    work = job.workload
    packs = {2**power for power in range(work.pack_size.bit_length())} | {work.pack_size}
    for fragment in fragment_sizes(job, work.group_size):
        for pack in sorted(packs):
            yield fragment, pack


def fragment_sizes(job: Job, most: int) -> list[int]:
    """Return the divisors of the group size up to a size, in their order."""
    group_size = job.workload.group_size
    return [size for size in range(1, min(most, group_size) + 1) if not group_size % size]


def with_sizes(job: Job, fragment_size: int, pack_size: int) -> Job:
    """Return a job with other sizes."""
    work = replace(job.workload, fragment_size=fragment_size, pack_size=pack_size)
    return replace(job, workload=work)


def _placements(job: Job, may_leave_out: bool) -> Iterator[Job]:
    """Yield a job, and where sites have links it with all training at each, and at each alone."""
    yield job
    for site in job.homes:
        yield replace(job, home=site)
    for site in job.homes if may_leave_out else ():
        fleet = tuple(device for device in job.fleet if device.site == site)
        yield replace(job, fleet=fleet)


def _sizes_of(job: Job, most: int) -> list[Job]:
    """Return a job with other sizes, with fragments up to a size; none: 0."""
    return [with_sizes(job, *size) for size in sizes(job) if size[0] <= most]


def _fastest_size(
    job: Job, others: Sequence[Job], layout: LayoutName, share: float, most_staleness: int
) -> tuple[float, Job]:
    """Return the seconds of a layout, from one simulation, and the job with the best sizes.

    Args:
        job: that is to be done.
        others: the same with other sizes, if these are searched for.
        layout: that is judged.
        share: of stale groups.
        most_staleness: versions that these may be behind.
    """
    best = sorted(others, key=lambda own: _estimate(own, layout, share)[0])[:NUM_SIZES]
    rated = [(_simulated(own, layout, share, most_staleness), own) for own in (job, *best)]
    return min(rated, key=itemgetter(0))


def _simulated(job: Job, layout: LayoutName, share: float, most_staleness: int) -> float:
    _, split = _estimate(job, layout, share)
    helpers = assistants = 0
    if split is not None and not share:
        helpers = LAYOUTS[layout].trainers_help * (job.devices - split)
        assistants = LAYOUTS[layout].rollouts_train * split
    versions = Terms.of(job, split, share).staleness(most_staleness) if share else 1
    mixing = mixings(job.workload)[-1]
    choice = Choice(layout, split, helpers, assistants, share, versions, mixing)
    num_iterations = 3 + versions if share else 2
    return simulate_choice(job, choice, num_iterations=num_iterations).seconds


def _estimate(job: Job, layout: LayoutName, share: float) -> tuple[float, int | None]:
    """Return the seconds of a layout by its formula, and the split at which it is the fastest."""
    return min(
        ((_formula(job, layout, split, share), split) for split in _splits(job, layout)),
        key=lambda item: item[0],
    )


def _formula(job: Job, layout: LayoutName, split: int | None, share: float) -> float:
    """Return the seconds by formula, with as much generation as whole waves of fragments are."""
    work, terms = job.workload, Terms.of(job, split, share)
    speed = terms.rollout_speed
    if split is not None and LAYOUTS[layout].trainers_help and not share:
        speed = terms.speed
    waves = ceil(work.num_fragments / max(1, int(speed)))
    return FORMULAS[layout](replace(terms, generation=waves * terms.fragment * speed))


def _splits(job: Job, layout: LayoutName) -> Sequence[int | None]:
    if LAYOUTS[layout].colocated:
        return [None] if job.can_colocate else []
    return job.splits[:: max(1, ceil(len(job.splits) / NUM_SPLITS))]
