"""A cluster as numbers: which devices it has, and what they cost in seconds, money and energy."""

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping
from itertools import combinations, count, islice
from pathlib import Path
from typing import Self

from pydantic import Field, ValidationError, model_validator

from digen_core.config.load import describe_fields
from digen_core.control.costs import LEAST_SECONDS, Costs, DeviceCosts, Sent
from digen_core.control.protocol import Device, Role
from digen_core.errors import UserError
from digen_core.inputs.reading import read_toml
from digen_core.inputs.text import number_of
from digen_core.planning.clusters.groups import (
    ROLES,
    Card,
    DeviceGroup,
    GangGroup,
    Positive,
    RewardGroup,
    deal,
)
from digen_core.planning.clusters.means import KubernetesConfig, SiteLink, SlurmConfig
from digen_core.strict import YEAR, Duration, Strict

_OF_A_KIND = (
    "speed",
    "costs",
    "tflops",
    "bandwidth",
    "capacity",
    "gang",
    "gang_hosts",
)  # equal in all groups of a kind


class Cluster(Strict):
    """Devices, and the seconds of a recipe on them."""

    description: str = ""
    """What it stands for, and where its numbers come from."""

    devices: tuple[DeviceGroup, ...] = Field(min_length=1)
    """Groups of equal devices."""

    gangs: tuple[GangGroup, ...] = ()
    """Gangs of devices of several kinds. ``digen plan``, which finds such, does not look at
    them."""

    reward_devices: tuple[RewardGroup, ...] = ()
    """Groups of devices that only score, for rewards that name their pool."""

    reference: DeviceCosts | None = None
    """Seconds on a device of speed 1; may be left out if a profile or all groups give theirs."""

    reward: Duration = Field(0.0, ge=0)
    """Seconds of a sample on a reward server; 0 when the generating device scores."""

    reward_servers: int = Field(1, ge=1)
    """Samples that are scored at the same time."""

    optimizer_step: Duration = Field(0.0, ge=0)
    """Seconds of the optimizer step."""

    gradient_sum: Duration = Field(0.0, ge=0)
    """Seconds of bringing the sum of gradients of one other trainer to where it is added: to the
    device that steps or, of another site, to the first trainer there."""

    push: Duration = Field(0.0, ge=0)
    """Seconds from the optimizer step until a device that generates holds the new version."""

    switch_to_rollout: Duration = Field(0.0, ge=0)
    """Seconds until a device that trained is ready to generate."""

    switch_to_trainer: Duration = Field(0.0, ge=0)
    """Seconds until a device that generated is ready to train."""

    mfu_denoise: float = Field(0.23, ge=1e-6, le=1)
    """Share of ``tflops`` that estimates assume for denoising and decoding."""

    gang_efficiency: float = Field(0.85, ge=1e-6, le=1)
    """Share of their ``tflops`` together that estimates assume of GPUs that deal the tokens of a
    sample, so talk at each layer."""

    mfu_train: float = Field(0.21, ge=1e-6, le=1)
    """Share of ``tflops`` that estimates assume for training."""

    network: Positive | None = None
    """GB/s that each device receives, all at once: estimates take ``push`` and ``gradient_sum``
    from it."""

    links: tuple[SiteLink, ...] = ()
    """Between the sites of the devices, of each two of them; without any, bytes cross in no
    time."""

    slurm: SlurmConfig = SlurmConfig()
    kubernetes: KubernetesConfig = KubernetesConfig()

    @model_validator(mode="after")
    def _check_hosts(self) -> Self:
        for group in self.groups:
            if len(group.hosts) > group.count:
                raise ValueError(
                    f"devices: kind {group.kind} has {len(group.hosts)} hosts, but "
                    f"{number_of(group.count, 'device')} in all"
                )
        return self

    @model_validator(mode="after")
    def _check_links(self) -> Self:
        if not self.links:
            return self
        sites = {group.site for group in self.devices}
        if "" in sites:
            raise ValueError("devices: there are links between sites, but a group has no site")
        asked = Counter(link.link.sites for link in self.links)
        needed = {frozenset(pair) for pair in combinations(sorted(sites), 2)}
        for pair, number in asked.items():
            if pair not in needed or number > 1:
                names = " and ".join(map(repr, sorted(pair)))
                why = "there are two" if number > 1 else f"devices have the sites {sorted(sites)}"
                raise ValueError(f"links: one is between {names}, but {why}")
        for pair in sorted(needed - asked.keys(), key=sorted):
            raise ValueError(f"links: none is between {' and '.join(map(repr, sorted(pair)))}")
        return self

    @model_validator(mode="after")
    def _check_gangs(self) -> Self:
        taken = {group.kind for group in self.groups}
        for own in self.gangs:
            if own.kind in taken:
                raise ValueError(f"gangs: devices have the kind {own.kind}, too; use another name")
        for key, asked in (
            ("slurm.constraints", self.slurm.constraints),
            ("kubernetes.node_labels", self.kubernetes.node_labels),
        ):
            for kind in asked.keys() - taken:
                raise ValueError(f"{key}: it is {kind}, but devices have the kinds {sorted(taken)}")
        deal(self.gangs, self.devices)
        return self

    @model_validator(mode="after")
    def _check(self) -> Self:
        known: dict[str, DeviceGroup] = {}
        for group in self.devices:
            first = known.setdefault(group.kind, group)
            if any(getattr(first, key) != getattr(group, key) for key in _OF_A_KIND):
                raise ValueError(
                    f"devices: kind {group.kind} has two speeds, costs or gangs; use another name "
                    "for one"
                )
            _check_costs("devices", f" of kind {group.kind}", group.costs)
        _check_costs("reference", "", self.reference)
        roles = frozenset[Role]().union(*(ROLES[group.roles] for group in self.devices))
        for role in sorted(ROLES["both"] - roles):
            raise ValueError(f"devices: none has the role {role}; give one roles {role} or both")
        return self

    @property
    def leaves_costs_to_data_sheets(self) -> bool:
        """Whether it says of some device what a data sheet says, and not what a recipe costs."""
        return self.reference is None and any(
            group.costs is None and group.tflops for group in self.devices
        )

    @property
    def slowest_link(self) -> float | None:
        """GB/s of the device that receives a version last; None: not known of all devices."""
        links = [group.link or self.network for group in self.devices]
        known = [link for link in links if link is not None]
        return min(known) if len(known) == len(links) else None

    @property
    def fleet(self) -> tuple[Device, ...]:
        """Its devices by name; the roles are those that they may have."""
        number = defaultdict[str, Iterator[int]](count)
        return tuple(
            Device(
                f"{group.kind}-{next(number[group.kind])}",
                ROLES[group.roles],
                group.kind,
                group.members,
                group.site,
            )
            for group in self.devices
            for _ in range(group.num_devices)
        )

    @property
    def to_plan(self) -> Self:
        """The cluster without what only starting its workers takes, so that devices may change."""
        slurm = self.slurm.model_copy(update={"constraints": {}})
        kubernetes = self.kubernetes.model_copy(update={"node_labels": {}})
        unsaid = {"gangs": (), "slurm": slurm, "kubernetes": kubernetes}
        return self.model_copy(update=unsaid)

    def in_gangs(self, size: int) -> Self | None:
        """Return the cluster with its devices in gangs of some size; None: they make no such."""
        groups = [group.model_dump() | {"gang": size} for group in self.devices]
        try:
            return self.model_validate(self.to_plan.model_dump() | {"devices": groups})
        except ValidationError:
            return None

    @property
    def groups(self) -> tuple[DeviceGroup | RewardGroup, ...]:
        """Groups of all devices, those that only score last."""
        return (*self.devices, *self.reward_devices)

    @property
    def alone(self) -> tuple[DeviceGroup | RewardGroup, ...]:
        """Groups of whose kind no gang of ``gangs`` has any."""
        in_gangs = {name.partition("@")[0] for own in self.gangs for name in own.ranks}
        return tuple(group for group in self.groups if group.kind not in in_gangs)

    @property
    def dealt(self) -> list[tuple[GangGroup, list[Card]]]:
        """Each of ``gangs`` by itself, with its members by rank."""
        each = [own for own in self.gangs for _ in range(own.count)]
        return list(zip(each, deal(self.gangs, self.devices), strict=True))

    @property
    def left_over(self) -> list[Card]:
        """Devices whose kind ``gangs`` have, but that are in none of them."""
        taken = {card for _, cards in self.dealt for card in cards}
        every = [
            Card(place, number)
            for place, group in enumerate(self.devices)
            if group not in self.alone
            for number in range(group.count)
        ]
        return [card for card in every if card not in taken]

    @property
    def price_per_hour(self) -> float:
        """Of all devices together."""
        return sum(group.count * group.price_per_hour for group in self.groups)

    @property
    def watts(self) -> float:
        """Of all devices together, at work."""
        return sum(group.count * group.watts for group in self.groups)

    @property
    def names(self) -> list[tuple[DeviceGroup, list[str]]]:
        """The names of the devices of each group."""
        places = iter(device.name for device in self.fleet)
        return [(group, list(islice(places, group.num_devices))) for group in self.devices]

    def of_devices(self, names: Collection[str]) -> Self:
        """Return the cluster with these devices alone, and all those that only score."""
        found = []
        for group, own in self.names:
            used = len(set(own) & set(names))
            if used:
                fewer = {"count": used * group.members, "hosts": (), "gang_hosts": 1}
                found.append(group.model_copy(update=fewer))
        return self.model_copy(update={"devices": tuple(found)})

    def costs(self, profile: Costs | None = None, sent: Sent | None = None) -> Costs:
        """Return what everything costs.

        Args:
            profile: of a run with the recipe. It wins over the file: a kind that it knows costs
                what it says, another one what the first that the file has, too, over their speeds.
                But links are the file's, if it has any.
            sent: bytes of the recipe, that cross the links; a version's are the profile's, if it
                has seen one.

        Raises:
            UserError: neither says what a kind costs.
        """
        known = {_name_of(kind): found for kind, found in profile.kinds.items()} if profile else {}
        kinds = {
            group.kind: known.get(group.kind) or self._costs_of(group, known)
            for group in self.devices
        }
        known_now: dict[str, object] = {"kinds": kinds}
        if self.links:
            known_now["links"] = tuple(own.link for own in self.links)
        if sent:
            known_now["sent"] = sent.as_seen(profile.sent) if profile else sent
        return (profile or self._costs()).model_copy(update=known_now)

    def _costs(self) -> Costs:
        """Return what the file says beside the costs of kinds, and links."""
        return Costs(
            kinds={},
            reward=self.reward,
            reward_servers=self.reward_servers,
            optimizer_step=self.optimizer_step,
            gradient_sum=self.gradient_sum,
            push=self.push,
            switch_to_rollout=self.switch_to_rollout,
            switch_to_trainer=self.switch_to_trainer,
        )

    def _costs_of(self, group: DeviceGroup, known: Mapping[str, DeviceCosts]) -> DeviceCosts:
        if group.costs is not None:
            return group.costs
        for other in self.devices:
            if other.kind in known:
                return known[other.kind].times(group.slowness(other))
        reference = next(iter(known.values()), self.reference)
        if reference is None:
            raise UserError(
                f"the cluster does not say what a {group.kind} costs; give it costs or tflops, or "
                "the cluster a reference, or set schedule.profile to the profile.json of a run"
            )
        return reference.times(1 / group.speed)


def _check_costs(where: str, of: str, costs: DeviceCosts | None) -> None:
    """Check that a step and a pack cost something, and nothing more than anybody waits for."""
    for what, own in (("step", costs.step), ("pack", costs.pack)) if costs else ():
        if not own(1):
            raise ValueError(f"{where}: a step or a pack{of} costs nothing")
        if not LEAST_SECONDS <= own(1) <= YEAR:
            raise ValueError(
                f"{where}: a {what}{of} costs {own(1):g} seconds; use {LEAST_SECONDS:g} to {YEAR}, "
                "those of a year"
            )
    if costs and costs.decode(1) > YEAR:
        raise ValueError(
            f"{where}: to decode a sample{of} costs {costs.decode(1):g} seconds; use {YEAR} at "
            "most, those of a year"
        )


def _name_of(kind: str) -> str:
    """Return how a cluster file writes the kind of a worker, the name of its GPU: "NVIDIA-H200"."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", kind)


def load_cluster(path: Path) -> Cluster:
    """Read a cluster from a TOML file.

    Raises:
        UserError: the file is missing or not TOML, or a key or value is wrong.
    """
    try:
        return Cluster.model_validate(read_toml(path, "the cluster"))
    except ValidationError as error:
        raise UserError(f"{path}: {describe_fields(error, Cluster)}") from error
