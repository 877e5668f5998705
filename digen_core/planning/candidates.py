"""Candidates: the devices of a cluster in gangs of each size, and how their members share the work.

Gangs are tried where the cluster file leaves them open and costs are estimated, so can be said of
each size. Where one group of devices leaves them open, it is tried in gangs of two sizes, too: for
generating and for training other sizes may be the best.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, combinations, product
from math import prod
from typing import Final

from digen_core.config.families import Settings
from digen_core.config.parallel import ParallelConfig
from digen_core.config.run import RunConfig
from digen_core.errors import ConfigError, UserError
from digen_core.gang.degrees import check_degree, check_shards
from digen_core.planning.capacity import Fit, ShortageError, fit_recipe
from digen_core.planning.clusters.cluster import Cluster
from digen_core.planning.clusters.groups import DeviceGroup
from digen_core.planning.gang_settings import GANGS
from digen_core.planning.memory import Memory
from digen_core.planning.search import MIN_GAIN

MemoryOf = Callable[[RunConfig, int], Memory]
"""The memory of a config on each GPU of a gang of some size."""

MAX_WAYS: Final = 256
"""To put groups in gangs, each of any size: 4 sizes of 4 groups."""

_Way = tuple[tuple[DeviceGroup, ...], ...]

_QUARTERS: Final = (1, 2, 3)  # of a group, in the gangs of the smaller size


@dataclass(frozen=True, slots=True)
class Candidate:
    """A config on devices in gangs, and what their memory leaves to plan with."""

    config: RunConfig
    devices: Cluster
    room: Fit
    ranks: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Of gangs in stages, by name: the members by rank, as ``gangs`` of a cluster file."""
    left_out: dict[str, int] = field(default_factory=dict)
    """Devices that are in no gang, by kind."""

    @property
    def cluster(self) -> Cluster:
        """The devices, with the roles that their memory leaves them."""
        return self.room.cluster

    @property
    def narrowed(self) -> dict[str, str]:
        """The one role that memory leaves devices which were to have more, by their kind."""
        pairs = zip(self.devices.devices, self.cluster.devices, strict=True)
        return {after.kind: after.roles for before, after in pairs if before.roles != after.roles}

    def with_references(self) -> list["Candidate"]:
        """Return it with each of those who may ask the reference policy; itself where that is said.

        Its memory is as much: who may ask has the reference policy's weights anyway.
        """
        if not self.config.reference_is_open:
            return [self]
        return [
            replace(self, config=self.config.asking("training")),
            replace(self, config=self.config.asking("generation")),
        ]

    def worth(self, seconds: float) -> float:
        """Return seconds, made longer by what each gang has to gain, and other changes have."""
        num_changes = sum(group.members > 1 for group in self.cluster.devices)
        num_changes += self.config.parallel.shard_weights + self.config.generates_reference
        return seconds * (1 + MIN_GAIN * num_changes)


def leaves_gangs_open(cluster: Cluster) -> bool:
    """Whether some devices may be put in gangs of any size."""
    return any(map(_is_open, cluster.devices))


def may_be_staged(cluster: Cluster) -> bool:
    """Whether all that stages are planned with is known of all devices: links, too."""
    has_links = bool(cluster.links) or len({group.site for group in cluster.devices}) == 1
    return has_links and all(
        _is_open(group) and bool(group.link or cluster.network) for group in cluster.devices
    )


def candidates(
    config: RunConfig, cluster: Cluster, settings: tuple[Settings, Settings], memory_of: MemoryOf
) -> list[Candidate]:
    """Return what fits of the gangs that are possible; sharded weights only if nothing else does.

    Args:
        config: of the run; keys of its table ``parallel`` that it gives are kept.
        cluster: some of whose devices may be put in gangs.
        settings: of VAE and transformer.
        memory_of: counts.

    Raises:
        ShortageError: nothing fits; the first thing that did not.
        ConfigError: no gangs can share the model as the config says.
    """
    memories = _Memories(memory_of)
    refused: UserError | None = None
    found: dict[object, Candidate] = {}
    for shards in _choices(config.parallel, "shard_weights", (False, True)):
        for own, devices in product(_sharing(config, bool(shards)), _in_gangs(cluster)):
            key = _shared(own.parallel, devices)
            if key in found:
                continue
            packed = _packed(own, devices)
            try:
                _check(packed, devices, settings)
                found[key] = Candidate(packed, devices, memories.fit(packed, devices))
            except (ShortageError, ConfigError) as error:
                refused = refused or error
        if found:
            break
    if not found:
        assert refused is not None, "devices are by themselves at least"
        raise refused
    return list(found.values())


class _Memories:
    """The memory of configs in gangs, each counted once."""

    def __init__(self, memory_of: MemoryOf) -> None:
        self._memory_of = memory_of
        self._known: dict[object, Memory] = {}

    def fit(self, config: RunConfig, cluster: Cluster) -> Fit:
        """Hold a config against the devices; raises what ``capacity.fit`` does."""
        sizes = {group.members for group in cluster.devices}
        memories = {size: self._of(config, size) for size in sizes}
        return fit_recipe(config, cluster, memories)

    def _of(self, config: RunConfig, size: int) -> Memory:
        """Return the memory of each GPU of a gang.

        Where weights are whole, it is that of the members that share a sample.
        """
        parallel = config.parallel
        degree = parallel.degree_of(size)
        counted = size if parallel.shard_weights else degree
        key = (counted > 1 and parallel.shard_weights, degree, counted)
        if key not in self._known:
            self._known[key] = self._memory_of(config, counted)
        return replace(self._known[key], num_shares=size // degree)


def _sharing(config: RunConfig, shards: bool) -> Iterator[RunConfig]:
    """Yield the config with each degree of context parallelism."""
    for degree in _choices(config.parallel, "context_parallel", (1, *GANGS)):
        parallel = ParallelConfig(shard_weights=shards, context_parallel=degree)
        yield config.model_copy(update={"parallel": parallel})


def _packed(config: RunConfig, cluster: Cluster) -> RunConfig:
    """Return the config with packs in which each share has as many pairs as it gives a device."""
    parallel, train = config.parallel, config.train
    shares = [group.members // parallel.degree_of(group.members) for group in cluster.devices]
    packs = train.model_copy(update={"pack_size": train.pack_size * max(shares)})
    return config.model_copy(update={"train": packs})


def _choices(parallel: ParallelConfig, key: str, choices: Sequence[int]) -> Sequence[int]:
    """Return the values that a key may have: what the config says, if it does."""
    return (getattr(parallel, key),) if key in parallel.model_fields_set else choices


def _shared(parallel: ParallelConfig, cluster: Cluster) -> object:
    """Return what a candidate is known by: with equal ones the members do the same."""
    groups = tuple((group.count, group.members) for group in cluster.devices)
    sizes = {size for _, size in groups if size > 1}
    degrees = tuple(parallel.degree_of(size) for size in sorted(sizes))
    return groups, degrees, bool(sizes) and parallel.shard_weights


def _check(config: RunConfig, cluster: Cluster, settings: tuple[Settings, Settings]) -> None:
    """Check that the members of all gangs can share the model; raises ConfigError."""
    check_shards(config)
    for size in sorted({group.members for group in cluster.devices}):
        check_degree(config, size, settings)


def _is_open(group: DeviceGroup) -> bool:
    known = group.tflops is not None and group.capacity is not None
    return known and group.gang is None and group.costs is None


def _in_gangs(cluster: Cluster) -> Iterator[Cluster]:
    """Yield the cluster with its devices in gangs, as they are first."""
    is_alone = sum(map(_is_open, cluster.devices)) == 1
    options = [list(_options(group, mixed=is_alone)) for group in cluster.devices]
    for chosen in _ways(options):
        devices = tuple(chain.from_iterable(chosen))
        yield cluster.model_copy(update={"devices": devices})


def _ways(options: Sequence[Sequence[tuple[DeviceGroup, ...]]]) -> Iterator[_Way]:
    """Yield one option of each group: all that there are, or of very many those of one size.

    Groups that have no gangs of that size are then in the next smaller ones.
    """
    if prod(map(len, options)) <= MAX_WAYS:
        yield from product(*options)
        return
    for size in (1, *GANGS):
        fitting = ([own for own in each if own[0].members <= size] or each[:1] for each in options)
        yield tuple(own[-1] for own in fitting)


def _options(group: DeviceGroup, *, mixed: bool) -> Iterator[tuple[DeviceGroup, ...]]:
    """Yield the groups that a group can be made into."""
    if not _is_open(group):
        yield (group,)
        return
    sizes = [size for size in (1, *GANGS) if group.holds_gangs(size) and size <= group.count]
    for size in sizes:
        yield (_part(group, size),)
    if mixed and group.roles == "both":
        for smaller, larger in combinations(sizes, 2):
            yield from _two_parts(group, smaller, larger)


def _two_parts(
    group: DeviceGroup, smaller: int, larger: int
) -> Iterator[tuple[DeviceGroup, DeviceGroup]]:
    """Yield a group in gangs of two sizes, a quarter, half and three quarters in the smaller."""
    num_hosts = max(len(group.hosts), 1)
    unit = group.count // num_hosts if num_hosts > 1 else larger
    counts = {round(group.count * quarter / 4 / unit) * unit for quarter in _QUARTERS}
    for count in sorted(counts - {0, group.count}):
        on = count // unit if num_hosts > 1 else num_hosts
        first = group.model_copy(update={"count": count, "hosts": group.hosts[:on]})
        rest = group.hosts[on:] or group.hosts
        second = group.model_copy(update={"count": group.count - count, "hosts": rest})
        yield _part(first, smaller), _part(second, larger)


def _part(group: DeviceGroup, size: int) -> DeviceGroup:
    kind = group.kind if size == 1 else f"{group.kind}-{size}"
    return group.model_copy(update={"gang": size, "kind": kind})
