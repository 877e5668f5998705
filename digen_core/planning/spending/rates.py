"""Rates of spending: what devices take of money, or of energy, at work and while they wait."""

from collections.abc import Mapping
from dataclasses import dataclass

from digen_core.errors import UserError
from digen_core.planning.clusters.cluster import Cluster
from digen_core.planning.clusters.groups import DeviceGroup, RewardGroup
from digen_core.planning.job import Job
from digen_core.planning.planner import JobPlan
from digen_core.planning.spending import Spent
from digen_core.sim.report import SimulationReport

_KEYS: Mapping[Spent, str] = {"money": "price_per_hour", "energy": "watts"}
"""Of a group of devices, which says what each of them takes."""


@dataclass(frozen=True, slots=True)
class Rate:
    """What a device takes in a second: of money in your currency, of energy in joules."""

    busy: float
    idle: float

    def spent(self, seconds: float, busy_share: float) -> float:
        """Return what it takes in some time, of which it works a share."""
        return seconds * (self.idle + busy_share * (self.busy - self.idle))

    def times(self, number: float) -> "Rate":
        """Return the rate of so many."""
        return Rate(number * self.busy, number * self.idle)


@dataclass(frozen=True, slots=True)
class Spending:
    """What all that a plan uses takes. Devices that it leaves out take nothing."""

    devices: Mapping[str, Rate]  # by name, those of gangs with all their members
    scoring: Rate  # of all devices that only score, together: a plan leaves none of them out
    byte: Mapping[frozenset[str], float]  # money of one that crosses a link, by its sites

    @classmethod
    def of(cls, cluster: Cluster, spent: Spent) -> "Spending":
        """Return what the devices of a cluster take; what its file does not say is 0."""
        rates = {
            name: _rate(group, spent).times(group.members)
            for group, names in cluster.names
            for name in names
        }
        scoring = [_rate(group, spent).times(group.count) for group in cluster.reward_devices]
        prices = {own.link.sites: own.price_per_gb / 1e9 for own in cluster.links}
        return cls(
            rates,
            Rate(sum(own.busy for own in scoring), sum(own.idle for own in scoring)),
            prices if spent == "money" else {},
        )

    def of_plan(self, own: JobPlan) -> float:
        """Return what an iteration of a plan takes."""
        return self.of_report(own.job, own.plan.report)

    def of_report(self, job: Job, report: SimulationReport) -> float:
        """Return what an iteration of a job takes that was simulated."""
        devices = sum(
            self.devices[name].spent(report.seconds, share)
            for name, share in report.busy_share.items()
        )
        scoring = self.scoring.spent(report.seconds, _scoring_share(job, report.seconds))
        crossing = sum(self.byte.get(sites, 0.0) * num for sites, num in report.crossed.items())
        return devices + scoring + crossing


def check_rates(cluster: Cluster, spent: Spent) -> None:
    """Check that the file of a cluster says what each of its devices takes.

    Raises:
        UserError: it does not, or all of them are free.
    """
    key = _KEYS[spent]
    for group in cluster.groups:
        if key not in group.model_fields_set:
            raise UserError(
                f"the cluster does not say the {key} of kind {group.kind}, so not what plans take "
                f"of {spent}; give each group its own, 0 if it takes none"
            )
    spending = Spending.of(cluster, spent)
    if not any(rate.busy for rate in spending.devices.values()) and not any(spending.byte.values()):
        raise UserError(
            f"the cluster's devices that generate and train have {key} 0, so all plans take the "
            f"same {spent}; use the objective seconds"
        )


def _rate(group: DeviceGroup | RewardGroup, spent: Spent) -> Rate:
    if spent == "money":
        price = group.price_per_hour / 3600
        return Rate(price, price)  # who waits is paid, too
    return Rate(group.watts, group.waiting_watts)


def _scoring_share(job: Job, seconds: float) -> float:
    """Return the share of the time in which devices that only score do so."""
    work, costs = job.workload, job.known_costs
    busy = work.num_scored * costs.reward / costs.reward_servers
    return min(1.0, busy / seconds)
