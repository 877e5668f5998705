"""The planner: the layout, split and sizes that are the fastest for a job.

Closed forms rank fragment and pack sizes for each layout. One simulation of each of the best ones
ranks the layouts. The search for split and mechanisms is left to the layouts near the fastest, and
to those with stale groups, where there may be some.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import ceil, inf
from operator import attrgetter

from digen_core.config.run import RunConfig
from digen_core.control.layout import LAYOUTS, LayoutName
from digen_core.control.schedule import mixings
from digen_core.errors import UserError
from digen_core.inputs.text import number_of
from digen_core.planning.job import Job, layouts_for
from digen_core.planning.search import Choice, Fixed, Plan, Value, search, simulate_choice
from digen_core.sim.closed_forms import FORMULAS, Terms

NUM_SIZES = 2  # fragment and pack sizes that are simulated for a layout, and the job's own
NUM_SPLITS = 12  # at most, that rank a size
NUM_SEARCHED = 2  # layouts, and colocated-strong, and those with stale groups
BASELINE: LayoutName = "colocated-strong"
LESS_HELP = "use less of schedule.helpers and schedule.assistants, or 'auto'"


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


@dataclass(frozen=True, slots=True)
class Leeway:
    """What plans of a job may choose from."""

    layouts: Sequence[LayoutName]
    """Those that the devices' roles rule out are left out."""

    fixed: Fixed = field(default_factory=Fixed)
    """Quantities to keep."""

    max_stale_share: float = 0.0
    """Share of stale groups in layouts that have them; others have none."""

    max_staleness: int = 1
    """Versions that these may be behind at most; the plan has the least that pays."""

    search_sizes: bool = False
    """Choose fragment and pack sizes too, packs up to the job's."""

    largest_fragment: int | None = None
    """That may be chosen; None: any."""

    may_leave_out: bool = False
    """Use the devices of one site alone where that is faster than its links."""

    @classmethod
    def of(
        cls,
        config: RunConfig,
        *,
        search_sizes: bool = False,
        largest_fragment: int | None = None,
        helps: bool = True,
        assists: bool = True,
        may_leave_out: bool = False,
    ) -> "Leeway":
        """Return what a config allows and does not fix.

        Args:
            config: of the run.
            search_sizes: as above.
            largest_fragment: as above.
            helps: whether devices that train have room for generating beside it.
            assists: whether devices that generate have room for training beside it.
            may_leave_out: as above.
        """
        schedule = config.schedule
        return cls(
            _layouts(config, mixes=helps and assists),
            Fixed(
                helpers=schedule.num_helpers if helps else 0,
                assistants=schedule.num_assistants if assists else 0,
            ),
            max_stale_share=schedule.stale_share,
            max_staleness=schedule.max_staleness,
            search_sizes=search_sizes,
            largest_fragment=largest_fragment,
            may_leave_out=may_leave_out,
        )

    def share(self, layout: LayoutName) -> float:
        """Return the share of stale groups in a layout."""
        return self.max_stale_share if LAYOUTS[layout].stale else 0.0

    def with_sizes(self, job: Job) -> list[Job]:
        """Return a job with each of the other sizes that may be chosen."""
        if not self.search_sizes:
            return []
        most = self.largest_fragment or job.workload.group_size
        return [with_sizes(job, *size) for size in sizes(job) if size[0] <= most]


def plan_job(job: Job, leeway: Leeway) -> list[JobPlan]:
    """Return the plans of the most promising layouts, the fastest first.

    The fastest is never slower than colocated-strong, if that is among the layouts.

    Args:
        job: what is to be done, where, and what it costs.
        leeway: what may be chosen.

    Raises:
        UserError: nothing is left to choose from.
    """
    fixed = leeway.fixed
    if max(fixed.helpers or 0, fixed.assistants or 0) >= job.devices:
        raise UserError(f"no split of {number_of(job.devices, 'device')} has {fixed}; {LESS_HELP}")
    possible = [layout for layout in leeway.layouts if splits(job, layout)]
    if not possible:
        known = list(leeway.layouts)
        raise UserError(
            f"{number_of(job.devices, 'device')} with these roles can do none of {known}"
        )
    placed = list(placements(job, leeway.may_leave_out))
    sized = {
        layout: min(
            (judge(own, layout, leeway) for own in placed if splits(own, layout)),
            key=_seconds,
        )
        for layout in possible
    }
    ranking = sorted(possible, key=lambda layout: sized[layout].seconds)
    # Those with stale groups are judged without help, so they may be faster than they seem.
    others = [x for x in ranking[NUM_SEARCHED:] if x == BASELINE or leeway.share(x)]
    searched = ranking[:NUM_SEARCHED] + others
    plans = [in_full(sized[layout], leeway) for layout in searched]
    return sorted(plans, key=lambda plan: (plan.seconds, plan.layout != BASELINE))


def in_full(judged: JobPlan, leeway: Leeway, value: Value = attrgetter("seconds")) -> JobPlan:
    """Return the fastest plan that has a judged one's layout, devices and sizes, or the best else.

    Args:
        judged: a plan.
        leeway: what may be chosen.
        value: that is to be the least.

    Raises:
        UserError: none has the quantities that are fixed.
    """
    share = leeway.max_stale_share if LAYOUTS[judged.layout].stale else None
    fixed = replace(leeway.fixed, stale_share=share, most_staleness=leeway.max_staleness)
    try:
        found = search(judged.job, judged.layout, fixed, value=value, simulated=judged.plan)
        return JobPlan(judged.job, found)
    except ValueError as error:
        raise UserError(f"{error}; {LESS_HELP}") from error


def estimated_seconds(job: Job, leeway: Leeway) -> float:
    """Return the seconds of a job's fastest layout by formula; infinite if none is possible."""
    return min(
        (estimate(job, name, leeway.share(name))[0] for name in by_formula(job, leeway)),
        default=inf,
    )


def by_formula(job: Job, leeway: Leeway) -> list[LayoutName]:
    """Return the layouts that a job has and that formulas hold for.

    Those of layouts with help suppose it; without it they are others of the list.
    """
    fixed, found = leeway.fixed, []
    for name in leeway.layouts:
        layout = LAYOUTS[name]
        without_help = (layout.trainers_help and fixed.helpers == 0) or (
            layout.rollouts_train and fixed.assistants == 0
        )
        if splits(job, name) and (leeway.share(name) or not without_help):
            found.append(name)
    return found


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
    """Return the divisors of the group size up to a size, and a batch's, in their order."""
    group_size, together = job.workload.group_size, job.workload.batch_size
    most = min(most, group_size, together if together > 1 else group_size)
    return [size for size in range(1, most + 1) if not group_size % size]


def with_sizes(job: Job, fragment_size: int, pack_size: int) -> Job:
    """Return a job with other sizes."""
    work = replace(job.workload, fragment_size=fragment_size, pack_size=pack_size)
    return replace(job, workload=work)


def placements(job: Job, may_leave_out: bool) -> Iterator[Job]:
    """Yield a job, and where sites have links it with all training at each, and at each alone."""
    yield job
    for site in job.homes:
        yield replace(job, home=site)
    for site in job.homes if may_leave_out else ():
        fleet = tuple(device for device in job.fleet if device.site == site)
        yield replace(job, fleet=fleet)


def judge(job: Job, layout: LayoutName, leeway: Leeway) -> JobPlan:
    """Return the fastest plan from one simulation of a layout with each of its promising sizes.

    Raises:
        ValueError: the devices' roles rule the layout out.
    """
    share = leeway.share(layout)
    best = sorted(leeway.with_sizes(job), key=lambda own: estimate(own, layout, share)[0])
    others = [own for own in best[:NUM_SIZES] if own.workload != job.workload]
    rated = [_simulated(own, layout, leeway) for own in (job, *others)]
    return min(rated, key=_seconds)


def _seconds(plan: JobPlan) -> float:
    return plan.seconds


def _simulated(job: Job, layout: LayoutName, leeway: Leeway) -> JobPlan:
    share = leeway.share(layout)
    _, split = estimate(job, layout, share)
    helpers = assistants = 0
    if split is not None and not share:
        helpers = LAYOUTS[layout].trainers_help * (job.devices - split)
        assistants = LAYOUTS[layout].rollouts_train * split
    versions = Terms.of(job, split, share).staleness(leeway.max_staleness) if share else 1
    mixing = mixings(job.workload)[-1]
    choice = Choice(layout, split, helpers, assistants, share, versions, mixing)
    report = simulate_choice(job, choice, num_iterations=3 + versions if share else 2)
    return JobPlan(job, Plan(choice, report.seconds, report))


def estimate(job: Job, layout: LayoutName, share: float) -> tuple[float, int | None]:
    """Return the seconds of a layout by its formula, and the split at which it is the fastest."""
    return min(
        ((_formula(job, layout, split, share), split) for split in splits(job, layout)),
        key=lambda item: item[0],
    )


def _formula(job: Job, layout: LayoutName, split: int | None, share: float) -> float:
    """Return the seconds by formula, with as many fragments as the device with the most has."""
    work, terms = job.workload, Terms.of(job, split, share)
    speed = terms.rollout_speed
    if split is not None and LAYOUTS[layout].trainers_help and not share:
        speed = terms.speed
    most = ceil(work.num_fragments / max(1, int(speed)))
    generation = speed * terms.reference.fragments(work, work.fragment_size, most, work.mean_steps)
    return FORMULAS[layout](replace(terms, generation=generation))


def splits(job: Job, layout: LayoutName) -> Sequence[int | None]:
    """Return splits of a layout to rank by formula, None where all do both; empty: impossible."""
    if LAYOUTS[layout].colocated:
        return [None] if job.can_colocate else []
    return job.splits[:: max(1, ceil(len(job.splits) / NUM_SPLITS))]
