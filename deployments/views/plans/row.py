"""A plan as it is shown: its devices, and what an iteration is predicted to take."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from digen_core.config.parallel import ParallelConfig
from digen_core.config.run import RunConfig
from digen_core.control.layout import LayoutName
from digen_core.control.protocol import Device
from digen_core.control.schedule import Workload
from digen_core.planning.cluster_plan import ClusterPlan, CostsFrom
from digen_core.planning.clusters.cluster import Cluster
from digen_core.planning.planner import JobPlan
from digen_core.planning.spending import Spent
from digen_core.trace.gaps import idle_gaps
from digen_core.trace.metrics import idle_seconds
from digen_core.trace.windows import Window

ASKING: Final = "*"
"""After a layout in which who generates asks the reference policy."""


@dataclass(frozen=True, slots=True)
class Part:
    """Equal devices of a plan."""

    kind: str  # as in the cluster file; with the size of the gangs that were found
    site: str  # as in the cluster file
    count: int  # of GPUs, or other cards
    gang: int  # of them hold one model together
    roles: str


@dataclass(frozen=True, slots=True)
class Ranked:
    """Gangs of a plan that have equal members, rank for rank."""

    kind: str
    count: int
    ranks: Sequence[str]
    roles: str


@dataclass(frozen=True, slots=True)
class Row:
    """A plan, and what it is predicted to take."""

    layout: LayoutName
    rollout: int  # devices that generate; in colocated layouts all do both
    trainers: int
    helpers: int  # trainers that may generate
    assistants: int  # rollout devices that may train
    stale_share: float  # of the groups
    max_staleness: int  # versions that these may be behind
    reference: str | None  # who asks the reference policy, as in schedule.reference; None: nobody
    fragment_size: int
    batch_size: int | None  # samples denoised together; None: those of a fragment
    pack_size: int
    seconds: float  # per iteration
    samples_per_second: float
    cost_per_1000_samples: float  # in the currency of the cluster file
    kwh_per_1000_samples: float
    idle: dict[str, float]  # share of the device seconds, by cause
    costs_from: CostsFrom
    fitted: bool  # into the capacity of all devices
    narrowed: Mapping[str, str]  # kind -> the one role that its memory leaves devices with two
    parts: Sequence[Part]  # the devices, in gangs
    left_out: Mapping[str, int]  # GPUs, or other cards, that do nothing: kind, or kind at site
    parallel: Mapping[str, object]  # how the members of a gang share the work
    cuts: Sequence[Mapping[str, object]]  # that are coded, as in model.cuts
    gangs: Sequence[Ranked]  # in stages, as in a cluster file

    @property
    def title(self) -> str:
        """Its layout, and whether generation does what training does else."""
        return f"{self.layout}{ASKING}" if self.reference == "generation" else self.layout

    @property
    def has_gangs(self) -> bool:
        """Whether any device is a gang."""
        return any(part.gang > 1 for part in self.parts)

    @property
    def stages(self) -> list[tuple[int, ...]]:
        """Blocks of each stage of its gangs, for each number of stages that they have."""
        used = {len(own.ranks) for own in self.gangs}
        parallel = ParallelConfig.model_validate(self.parallel)
        return [parallel.blocks_of(size) for size in sorted(used)]

    @property
    def has_sites(self) -> bool:
        """Whether the devices are at several."""
        return len({part.site for part in self.parts}) > 1

    @property
    def devices(self) -> str:
        """How many it uses of each kind."""
        counts = Counter[str]()
        for part in self.parts:
            counts[part.kind] += part.count
        return " + ".join(f"{count} {kind}" for kind, count in counts.items())

    def spent(self, what: Spent) -> float:
        """What 1000 samples take: of money in the cluster file's currency, of energy in kWh."""
        return self.cost_per_1000_samples if what == "money" else self.kwh_per_1000_samples

    def gangs_of(self, role: str) -> list[int]:
        """Return the sizes of the devices that have a role."""
        return sorted({part.gang for part in self.parts if part.roles in (role, "both")})


def row_of(plan: ClusterPlan) -> Row:
    """Return a plan as it is shown."""
    own = plan.own
    cluster = plan.cluster.of_devices({device.name for device in own.job.fleet})
    choice, work = own.plan.choice, own.job.workload
    rollout = own.job.devices if choice.num_rollout is None else choice.num_rollout
    num_samples = work.num_groups * work.group_size
    thousands = num_samples / 1000
    return Row(
        layout=choice.layout,
        rollout=rollout,
        trainers=own.job.devices - rollout,
        helpers=choice.helpers,
        assistants=choice.assistants,
        stale_share=choice.stale_share,
        max_staleness=choice.max_staleness,
        reference=_reference_in(plan.candidate.config),
        fragment_size=work.fragment_size,
        batch_size=_batch_size(plan.candidate.config, work),
        pack_size=work.pack_size,
        seconds=own.seconds,
        samples_per_second=num_samples / own.seconds,
        cost_per_1000_samples=plan.spends("money") / thousands,
        kwh_per_1000_samples=plan.spends("energy") / 3.6e6 / thousands,
        idle=_idle_shares(own),
        costs_from=plan.costs_from,
        fitted=all(group.capacity for group in cluster.devices),
        narrowed=plan.candidate.narrowed,
        parts=_parts(own, cluster),
        left_out=_left_out(plan.cluster, {device.name for device in own.job.fleet})
        | plan.candidate.left_out,
        parallel=plan.candidate.config.parallel.model_dump(),
        cuts=[cut.model_dump() for cut in plan.candidate.config.model.cuts],
        gangs=_gangs(own, plan.candidate.ranks),
    )


def _reference_in(config: RunConfig) -> str | None:
    """Return who asks the reference policy, if training compares with it."""
    return config.schedule.reference if config.algorithm.kl_coefficient else None


def _left_out(cluster: Cluster, used: Collection[str]) -> dict[str, int]:
    """Return how many devices, each member of a gang, do nothing, by what they are."""
    found = Counter[str]()
    for group, names in cluster.names:
        what = f"{group.kind} at {group.site}" if group.site else group.kind
        found[what] += group.members * sum(name not in used for name in names)
    return {what: number for what, number in found.items() if number}


def _parts(own: JobPlan, cluster: Cluster) -> list[Part]:
    """Return the devices by what a plan has them do."""
    groups = {group.kind: group for group in cluster.devices}
    devices = Counter((device.kind, device.site, roles) for device, roles in _dealt(own))
    return [
        Part(kind, site, num * groups[kind].members, groups[kind].members, roles)
        for (kind, site, roles), num in devices.items()
    ]


def _gangs(own: JobPlan, ranks: Mapping[str, Sequence[str]]) -> list[Ranked]:
    """Return the gangs whose members are known, by what a plan has them do."""
    found = Counter(
        (device.kind, tuple(ranks[device.name]), roles)
        for device, roles in _dealt(own)
        if device.name in ranks
    )
    return [Ranked(kind, number, names, roles) for (kind, names, roles), number in found.items()]


def _dealt(own: JobPlan) -> list[tuple[Device, str]]:
    """Return the devices with the roles that a plan gives them."""
    num_rollout = own.plan.choice.num_rollout
    return [
        (device, "both" if num_rollout is None else "/".join(device.roles))
        for device in own.job.cluster(num_rollout)
    ]


def _idle_shares(own: JobPlan) -> dict[str, float]:
    """Return the share of all device seconds that is idle, by cause."""
    report, choice = own.plan.report, own.plan.choice
    window, devices = Window(*report.steady), own.job.cluster(choice.num_rollout)
    seconds = idle_seconds(idle_gaps(report.spans, devices, window))
    total = len(devices) * window.seconds
    return {cause: idle / total for cause, idle in seconds.items()}


def _batch_size(config: RunConfig, work: Workload) -> int | None:
    if config.rollout.batch_size is None:
        return None
    return work.fragments_per_batch * work.fragment_size
