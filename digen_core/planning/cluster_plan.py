"""The plan of a config on a cluster: which gangs, layout, split and sizes are the fastest.

Of the gangs that are possible closed forms find the most promising, for which the planner then
searches in full.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from digen_core.control.costs import Costs, Sent
from digen_core.errors import UserError
from digen_core.planning.candidates import Candidate
from digen_core.planning.cluster import Cluster
from digen_core.planning.job import Job
from digen_core.planning.planner import (
    JobPlan,
    estimated_seconds,
    fragment_sizes,
    plan_config,
    with_sizes,
)

Priced = Callable[[Candidate], Cluster]
"""Returns the devices of a candidate with what they cost."""

NUM_PLANNED: Final = 3  # candidates that are searched in full


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


def plan_candidates(
    found: Sequence[Candidate], priced: Priced, profile: Costs | None, sent: Sent | None = None
) -> list[ClusterPlan]:
    """Return plans, the best first: of the best gangs all, of others the fastest.

    Args:
        found: one at least.
        priced: estimates what nobody measured.
        profile: costs of a run with the recipe.
        sent: bytes of the recipe, that cross links between sites.

    Raises:
        UserError: the costs are not known, or nothing is left to choose from.
    """
    jobs = [_Planned.of(candidate, priced(candidate), profile, sent) for candidate in found]
    promising = sorted(jobs, key=_Planned.worth)[:NUM_PLANNED] if len(jobs) > 1 else jobs
    plans, refused = list[list[ClusterPlan]](), list[UserError]()
    for planned in promising:
        try:
            plans.append(planned.plans())
        except UserError as error:
            refused.append(error)
    if not plans:
        raise refused[0]
    best, *others = sorted(plans, key=lambda own: own[0].worth)
    fastest = [own[0] for own in others]
    return sorted([*best, *fastest], key=lambda plan: (plan is not best[0], plan.own.seconds))


@dataclass(frozen=True, slots=True)
class _Planned:
    """A candidate with what its work costs."""

    candidate: Candidate
    cluster: Cluster
    job: Job

    @classmethod
    def of(
        cls, candidate: Candidate, cluster: Cluster, profile: Costs | None, sent: Sent | None
    ) -> "_Planned":
        """Return the job of a candidate, with the largest sizes up to the config's that fit."""
        room = candidate.room
        job = Job.of(candidate.config, cluster.fleet, cluster.costs(profile, sent))
        most = min(job.workload.fragment_size, room.fragment_size)
        packs = min(job.workload.pack_size, room.pack_size)
        return cls(candidate, cluster, with_sizes(job, fragment_sizes(job, most)[-1], packs))

    def worth(self) -> float:
        """Return the seconds by formula, made longer by what each gang has to gain."""
        config, room = self.candidate.config, self.candidate.room
        largest = fragment_sizes(self.job, room.fragment_size)[-1]
        jobs = (self.job, with_sizes(self.job, largest, self.job.workload.pack_size))
        seconds = min(
            estimated_seconds(job, config, helps=room.helps, assists=room.assists) for job in jobs
        )
        return self.candidate.worth(seconds)

    def plans(self) -> list[ClusterPlan]:
        """Search; raises what ``plan_config`` does."""
        room = self.candidate.room
        found = plan_config(
            self.job,
            self.candidate.config,
            search_sizes=True,
            largest_fragment=room.fragment_size,
            helps=room.helps,
            assists=room.assists,
            may_leave_out=True,
        )
        return [ClusterPlan(self.candidate, self.cluster, own) for own in found]
