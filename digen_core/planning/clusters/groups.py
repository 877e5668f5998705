"""Groups of equal devices in a cluster file: those that generate or train, and those that score."""

from collections import deque
from collections.abc import Sequence
from typing import Annotated, Final, Literal, NamedTuple, Self

from pydantic import Field, TypeAdapter, ValidationError, model_validator

from digen_core.config.parallel import MEMBERS
from digen_core.config.rewards.base import PoolName
from digen_core.control.costs import DeviceCosts
from digen_core.control.protocol import Role
from digen_core.errors import UserError
from digen_core.inputs.text import number_of
from digen_core.strict import AtMost, Strict

ROLES: dict[str, frozenset[Role]] = {
    "rollout": frozenset({"rollout"}),
    "trainer": frozenset({"trainer"}),
    "both": frozenset({"rollout", "trainer"}),
}


Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$", max_length=63)]
"""Stands in names of workers, files and jobs, and in scripts."""


def check_name(label: str, name: str) -> None:
    """Check the name of a worker or of a pool.

    Args:
        label: where it is from, for the error.
        name: to check.

    Raises:
        UserError: it cannot stand in files, jobs and scripts.
    """
    try:
        TypeAdapter(Name).validate_python(name)
    except ValidationError as error:
        raise UserError(
            f"{label} is {name!r}; use at most 63 letters, digits, '_', '.' and '-', the first a "
            "letter or a digit"
        ) from error


IDLE_SHARE: Final = 0.15
"""Of the watts at work, where a file does not say what a device takes that waits: an H200 was
measured to take 80 W of 593, a model in its memory."""

Positive = Annotated[float, Field(ge=1e-6, le=1e9)]
"""What a device has of something: with smaller and larger numbers than of any, predictions would
not be finite."""

Spent = Annotated[float, Field(ge=0, le=1e9)]
"""Money or power, likewise."""

_HOST = r"^([A-Za-z0-9_][A-Za-z0-9_.-]*@)?[A-Za-z0-9_:][A-Za-z0-9_.:-]*$"
Host = Annotated[str, Field(pattern=_HOST, max_length=255)]
"""As ``ssh`` takes it, and no option of it."""

MOST_DEVICES: Final = 16_384
"""Of a group."""


class WorkerGroup(Strict):
    """Equal devices, each with a worker of its own."""

    kind: Name
    """What they are, for example h100."""

    count: Annotated[int, AtMost(MOST_DEVICES, "each device is planned for by itself")] = Field(
        ge=1
    )
    """How many there are."""

    price_per_hour: Spent = 0.0
    """Of one device, in your currency."""

    watts: Spent = 0.0
    """Of one device at work."""

    idle_watts: Spent | None = None
    """Of one device that waits, its model in memory; null: 15% of ``watts``."""

    site: str = Field("", pattern=r"^([A-Za-z0-9][A-Za-z0-9_.-]*)?$", max_length=63)
    """Where they are: versions of the weights cross once between sites. On Kubernetes the zone that
    the workers are put in, too."""

    cuda: bool = False
    """Whether each is a GPU: its worker sees this one only."""

    threads: int = Field(1, ge=1)
    """CPU threads of each worker."""

    hosts: tuple[Host, ...] = ()
    """Machines that hold them, each an equal share: as ``ssh`` takes them, user@host."""

    @model_validator(mode="after")
    def _check_watts(self) -> Self:
        if self.idle_watts is not None and self.idle_watts > self.watts:
            raise ValueError(
                f"devices: kind {self.kind} has idle_watts {self.idle_watts:g}, but at work only "
                f"{self.watts:g} watts"
            )
        return self

    @property
    def waiting_watts(self) -> float:
        """Of one device that waits."""
        return IDLE_SHARE * self.watts if self.idle_watts is None else self.idle_watts


class DeviceGroup(WorkerGroup):
    """Devices that generate or train."""

    gang: Annotated[int, MEMBERS] | None = Field(None, ge=1)
    """How many of them hold one model together: what the planner then deals with, and the costs
    are of, are gangs. It divides ``count``, or the count of each host. Null: 1, but ``digen plan``
    looks for the best where it estimates the costs and knows the ``capacity``."""

    gang_hosts: int = Field(1, ge=1)
    """Hosts that each gang is on, with an equal part of it on each: more than 1 where the cards of
    one host do not hold the model."""

    roles: Literal["rollout", "trainer", "both"] = "both"
    """What they do; of those that may do both, the planner chooses how many generate."""

    speed: Positive = 1.0
    """Relative to the reference device."""

    costs: DeviceCosts | None = None
    """Measured seconds of this kind, instead of the reference's over ``speed``."""

    tflops: Positive | None = None
    """Peak of one GPU's dense bfloat16 arithmetic in TFLOP/s, as data sheets say: estimates the
    costs of a recipe where neither a profile nor this file gives any, and of a kind that a profile
    does not know by those of one that it does."""

    bandwidth: Positive | None = None
    """Peak of its memory's bandwidth in GB/s, for the same."""

    capacity: Positive | None = None
    """Memory of one GPU in GB (10^9 bytes): what does not fit is not planned. Null: not looked
    at."""

    peer_link: Positive | None = None
    """GB/s that each receives from the others of its gang: estimates of sharded weights count the
    gathering of them, those of stages what crosses cuts. Null: ``link``."""

    link: Positive | None = None
    """GB/s that each of them receives; null: the cluster's ``network``."""

    @model_validator(mode="after")
    def _check_gang(self) -> Self:
        if not self.holds_gangs(self.members):
            where = f" on {number_of(len(self.hosts), 'host')}" if self.hosts else ""
            spread = f", on {self.gang_hosts} hosts each" if self.gang_hosts > 1 else ""
            raise ValueError(
                f"devices: {self.count} of kind {self.kind}{where} are no whole gangs of "
                f"{self.members}{spread}"
            )
        return self

    def holds_gangs(self, size: int) -> bool:
        """Whether all of them can be in gangs of a size, each on ``gang_hosts`` of the hosts."""
        spread = self.gang_hosts
        num_hosts = len(self.hosts) or spread
        if size == spread == 1:
            return True
        if size % spread or num_hosts % spread or self.count % num_hosts:
            return False
        return self.count // num_hosts % (size // spread) == 0

    @property
    def members(self) -> int:
        """How many of them a device is: 1, or those of a gang."""
        return self.gang or 1

    @property
    def num_devices(self) -> int:
        """How many devices, or gangs, they are."""
        return self.count // self.members

    def slowness(self, other: Self) -> float:
        """Return how many times as long as on another one work takes: by speeds, else by peaks."""
        if self.speed == other.speed and self.tflops and other.tflops:
            return other.members * other.tflops / (self.members * self.tflops)
        return other.speed / self.speed

    @property
    def declared(self) -> frozenset[str]:
        """What their workers declare to Dask."""
        return ROLES[self.roles]

    @property
    def duty(self) -> tuple[str, ...]:
        """How ``digen worker`` is told what they do."""
        return (f"--role={self.roles}",)


class RewardGroup(WorkerGroup):
    """Devices that only score."""

    @property
    def members(self) -> int:
        """Each is by itself."""
        return 1

    @property
    def num_devices(self) -> int:
        """How many there are."""
        return self.count

    pool: PoolName
    """Name of the pool, which rewards give as theirs."""

    @property
    def declared(self) -> frozenset[str]:
        """What their workers declare to Dask."""
        return frozenset({self.pool})

    @property
    def duty(self) -> tuple[str, ...]:
        """How ``digen worker`` is told what they do."""
        return (f"--pool={self.pool}",)


_KIND_AT_SITE = r"^[A-Za-z0-9][A-Za-z0-9_.-]*(@[A-Za-z0-9][A-Za-z0-9_.-]*)?$"
CardName = Annotated[str, Field(pattern=_KIND_AT_SITE, max_length=127)]
"""A kind of devices, or kind@site."""


class GangGroup(Strict):
    """Gangs that are alike, of devices of several kinds or of several groups: how they are started.

    Devices whose kind is in such gangs are started as their members; those that are left over, as
    spares for followers of their kind and site.
    """

    kind: Name
    """What the gangs are called; their names are this and a number."""

    count: Annotated[int, AtMost(16_384, "each gang is started by itself")] = Field(1, ge=1)
    """How many there are."""

    ranks: Annotated[tuple[CardName, ...], Field(min_length=2, max_length=MEMBERS.most)]
    """The kind of each member, by rank, as groups of devices have it, or kind@site. The next of
    these devices that is free is taken, gang by gang."""

    roles: Literal["rollout", "trainer", "both"] = "both"
    """What they do."""

    @property
    def members(self) -> int:
        """How many devices each has."""
        return len(self.ranks)

    @property
    def declared(self) -> frozenset[str]:
        """What their workers declare to Dask."""
        return ROLES[self.roles]

    @property
    def duty(self) -> tuple[str, ...]:
        """How ``digen worker`` is told what they do."""
        return (f"--role={self.roles}",)


class Card(NamedTuple):
    """A device that is a member of a gang."""

    group: int  # place of its group
    number: int  # in the group


def deal(gangs: Sequence[GangGroup], groups: Sequence[DeviceGroup]) -> list[list[Card]]:
    """Return the members of each gang by rank, those of the first group of gangs first.

    Raises:
        ValueError: there are none of a kind, or not as many as gangs have, or they have a gang
            already or not its roles.
    """
    free = [deque(Card(place, n) for n in range(own.count)) for place, own in enumerate(groups)]

    def next_of(own: GangGroup, name: str) -> Card:
        kind, _, site = name.partition("@")
        places = [n for n, g in enumerate(groups) if g.kind == kind and site in ("", g.site)]
        if not places:
            there = sorted({f"{g.kind}@{g.site}" if g.site else g.kind for g in groups})
            raise ValueError(
                f"gangs: those of kind {own.kind} take {name}, but devices are {', '.join(there)}"
            )
        for place in places:
            _check_member(own, groups[place])
        left = next((free[place] for place in places if free[place]), None)
        if left is None:
            num = sum(groups[place].count for place in places)
            raise ValueError(f"gangs: those up to kind {own.kind} take more than the {num} {name}")
        return left.popleft()

    return [[next_of(own, name) for name in own.ranks] for own in gangs for _ in range(own.count)]


def _check_member(own: GangGroup, group: DeviceGroup) -> None:
    """Check that devices may be in a gang; raises ValueError."""
    if group.members > 1 or group.gang_hosts > 1:
        raise ValueError(
            f"gangs: those of kind {own.kind} take {group.kind}, whose group has a gang of its own"
        )
    if not own.declared <= group.declared:
        raise ValueError(
            f"gangs: those of kind {own.kind} have the roles {own.roles}, but their {group.kind} "
            f"{group.roles}"
        )
