"""The plan of a config on a cluster: which gangs, layout, split and sizes are the fastest.

Of the gangs that are possible closed forms find the most promising, for which the planner then
searches in full.
"""

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import inf
from typing import Final, Literal

from digen_core.config.run import RunConfig
from digen_core.control.costs import Costs, Sent
from digen_core.data.prompts import Prompt
from digen_core.errors import UserError
from digen_core.planning.candidates import Candidate
from digen_core.planning.clusters.cluster import Cluster
from digen_core.planning.job import Job, costs_for
from digen_core.planning.planner import (
    JobPlan,
    Leeway,
    estimated_seconds,
    fragment_sizes,
    plan_job,
    with_sizes,
)
from digen_core.planning.spending import Objective, Spent
from digen_core.planning.spending.frontier import frontier, undominated
from digen_core.planning.spending.rates import Spending

Priced = Callable[[Candidate], Cluster]
"""Returns the devices of a candidate with what they cost."""

Exchanged = Callable[[RunConfig], Sent]
"""Returns the bytes that devices send each other for a config."""

CostsFrom = Literal["data sheets", "profile", "cluster file"]
"""Where the costs of a plan are from."""

NUM_PLANNED: Final = 3  # candidates that are searched in full


@dataclass(frozen=True, slots=True)
class Aim:
    """What the best plan is to have."""

    objective: Objective = "seconds"
    """The least of."""

    within: float | None = None
    """Share of the fastest plan's seconds by which it may be slower; None: any."""

    @property
    def spent(self) -> Spent | None:
        """What it is to take the least of beside time; None: time itself."""
        return None if self.objective == "seconds" else self.objective


FASTEST: Final = Aim()


@dataclass(frozen=True, slots=True)
class ClusterPlan:
    """A plan, and the candidate that it is for."""

    candidate: Candidate
    cluster: Cluster  # with the costs of its devices
    own: JobPlan

    @property
    def worth(self) -> float:
        """Its seconds, made longer by what each gang has to gain."""
        return self.candidate.worth(self.own.seconds)

    @property
    def costs_from(self) -> CostsFrom:
        """Where its costs are from."""
        return costs_from(self.candidate.config, self.candidate.cluster)

    def spends(self, spent: Spent) -> float:
        """Return what an iteration takes of money, in your currency, or energy, in joules."""
        return Spending.of(self.cluster, spent).of_plan(self.own)


def costs_from(config: RunConfig, cluster: Cluster) -> CostsFrom:
    """Return where the costs of a config on a cluster are from; a profile comes first."""
    if config.schedule.profile:
        return "profile"
    return "data sheets" if cluster.leaves_costs_to_data_sheets else "cluster file"


@contextmanager
def _only_new_objects_collected() -> Iterator[None]:
    """Let garbage be looked for among what the body makes alone.

    Simulations make many objects; so often looking through those of torch and diffusers, too,
    where they are loaded, takes a sixth of the time.
    """
    is_own = not gc.get_freeze_count()  # else some have been left out for good
    if is_own:
        gc.freeze()
    try:
        yield
    finally:
        if is_own:
            gc.unfreeze()


@_only_new_objects_collected()
def plan_candidates(
    found: Sequence[Candidate],
    priced: Priced,
    profile: Costs | None,
    sent: Exchanged | None = None,
    aim: Aim = FASTEST,
    prompts: Sequence[Prompt] = (),
) -> list[ClusterPlan]:
    """Return plans, the best first.

    If the best is the fastest: of the best gangs all, of others the fastest. Else those of which
    each is faster than all that take less of what is aimed at, the fastest first after the best.

    Args:
        found: one at least; where their configs leave open who asks the reference policy, either
            may.
        priced: estimates what nobody measured, with a reference policy that is asked in training.
        profile: costs of a run with the recipe.
        sent: says what of a config crosses links between sites; None: there are none.
        aim: what is the best.
        prompts: that the run trains on, where these may have their own steps.

    Raises:
        UserError: the costs are not known, or nothing is left to choose from.
    """
    jobs = [
        _Planned.of(own, priced(own), profile, sent and sent(own.config), prompts)
        for candidate in found
        for own in candidate.with_references()
    ]
    promising = sorted(jobs, key=_Planned.worth)[:NUM_PLANNED] if len(jobs) > 1 else jobs
    plans, refused = list[tuple[_Planned, list[ClusterPlan]]](), list[UserError]()
    for planned in promising:
        try:
            plans.append((planned, planned.plans()))
        except UserError as error:
            refused.append(error)
    if not plans:
        raise refused[0]
    if aim.spent is not None:
        return _thriftiest(plans, aim.spent, aim.within)
    best, *others = sorted((own for _, own in plans), key=lambda own: own[0].worth)
    fastest = [own[0] for own in others]
    return sorted([*best, *fastest], key=lambda plan: (plan is not best[0], plan.own.seconds))


def _thriftiest(
    plans: Sequence[tuple["_Planned", list[ClusterPlan]]], spent: Spent, within: float | None
) -> list[ClusterPlan]:
    """Return the plans of which each is faster than all that take less, the one of the least first.

    Args:
        plans: the fastest of each candidate.
        spent: what they take.
        within: share of the fastest's seconds by which plans may be slower; None: any.
    """
    fastest = min(own.own.seconds for _, found in plans for own in found)
    limit = inf if within is None else (1 + within) * fastest
    thrifty = [
        own
        for planned, found in plans
        if found[0].own.seconds <= limit
        for own in planned.thrifty(found, spent, limit)
    ]
    points = [(own.own.seconds, own.spends(spent)) for own in thrifty]
    front = [thrifty[place] for place in undominated(points)]
    best = min(front, key=lambda own: own.candidate.worth(own.spends(spent)))
    return [best, *(own for own in front if own is not best)]


@dataclass(frozen=True, slots=True)
class _Planned:
    """A candidate with what its work costs."""

    candidate: Candidate
    cluster: Cluster
    job: Job

    @classmethod
    def of(
        cls,
        candidate: Candidate,
        cluster: Cluster,
        profile: Costs | None,
        sent: Sent | None,
        prompts: Sequence[Prompt],
    ) -> "_Planned":
        """Return the job of a candidate, with the largest sizes up to the config's that fit."""
        room = candidate.room
        asked = profile and costs_for(candidate.config.asking("training"), profile)
        costs = cluster.costs(asked, sent)
        job = Job.of(candidate.config, cluster.fleet, costs, prompts)
        work = replace(job.workload, batch_size=min(job.workload.batch_size, room.batch_size))
        job = replace(job, workload=work)
        most = min(work.fragment_size, room.fragment_size)
        packs = min(job.workload.pack_size, room.pack_size)
        return cls(candidate, cluster, with_sizes(job, fragment_sizes(job, most)[-1], packs))

    @property
    def leeway(self) -> Leeway:
        """What its memory and the config leave to choose from."""
        room = self.candidate.room
        return Leeway.of(
            self.candidate.config,
            search_sizes=True,
            largest_fragment=room.fragment_size,
            helps=room.helps,
            assists=room.assists,
            may_leave_out=True,
        )

    def worth(self) -> float:
        """Return the seconds by formula, made longer by what each gang has to gain."""
        largest = fragment_sizes(self.job, self.candidate.room.fragment_size)[-1]
        jobs = (self.job, with_sizes(self.job, largest, self.job.workload.pack_size))
        return self.candidate.worth(min(estimated_seconds(job, self.leeway) for job in jobs))

    def plans(self) -> list[ClusterPlan]:
        """Search for the fastest; raises what ``plan_job`` does."""
        return self._of(plan_job(self.job, self.leeway))

    def thrifty(
        self, fastest: Sequence[ClusterPlan], spent: Spent, limit: float
    ) -> list[ClusterPlan]:
        """Search for those that take the least, in so many seconds."""
        spending, known = Spending.of(self.cluster, spent), [plan.own for plan in fastest]
        return self._of(frontier(self.job, known, self.leeway, spending, limit))

    def _of(self, plans: Sequence[JobPlan]) -> list[ClusterPlan]:
        return [ClusterPlan(self.candidate, self.cluster, own) for own in plans]
