"""The workers of a cluster file: name, roles, threads, GPU and host of each."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count, groupby, islice

from digen_core.control.protocol import followers_of
from digen_core.errors import UserError
from digen_core.inputs.text import number_of
from digen_core.planning.clusters.cluster import Cluster
from digen_core.planning.clusters.groups import Card, DeviceGroup, GangGroup, RewardGroup
from tasks.cluster.listening import INSECURE
from tasks.cluster.spares import spare_resources
from tasks.cluster.start_method import THREAD_VARIABLES
from tasks.worker.process import resources_of

Host = str | None
"""Where a worker runs; None: on this machine, or wherever it is started."""


@dataclass(frozen=True, slots=True)
class Spares:
    """What is left over of a group whose kind gangs have: spares for their followers."""

    group: DeviceGroup
    places: tuple[str, ...]
    """Gangs all of whose followers are of its kind and site, and single ones of others."""

    @property
    def kind(self) -> str:
        """Begins their names."""
        return f"{self.group.kind}-spare"

    @property
    def members(self) -> int:
        """Each is by itself."""
        return 1

    @property
    def declared(self) -> frozenset[str]:
        """What their workers declare to Dask."""
        return frozenset(spare_resources(self.places))

    @property
    def duty(self) -> tuple[str, ...]:
        """How ``digen worker`` is told what they do."""
        return "--spare-for", *self.places


Kind = DeviceGroup | RewardGroup | GangGroup | Spares
"""What a device may be one of."""


@dataclass(frozen=True, slots=True)
class Worker:
    """What one command starts on one host: a worker process, or members of a gang."""

    device: str
    of: Kind
    site: str  # of its device
    group: DeviceGroup | RewardGroup  # what it computes with
    host: Host
    gpus: tuple[int, ...]  # their places among those of the host; none: it has no GPU
    ranks: range  # of the gang's members

    @property
    def name(self) -> str:
        """Name of its first process."""
        return self.names[0]

    @property
    def is_team(self) -> bool:
        """Whether other workers have the other members of its gang."""
        return len(self.ranks) < self.of.members

    def arguments(self, tls: bool) -> list[str]:
        """Return those of ``tasks.worker.process``; DASK_SCHEDULER_ADDRESS names the scheduler.

        Args:
            tls: of the cluster. Who switches it off is asked no second time.
        """
        named = ["--name", self.device, "--resources", resources_of(self.of.declared, self.site)]
        if self.of.members > 1:
            named += ["--members", str(self.of.members)]
        if self.is_team:
            named += ["--ranks", f"{self.ranks[0]}-{self.ranks[-1]}"]
        return named if tls else [*named, INSECURE]

    @property
    def names(self) -> tuple[str, ...]:
        """Names of its processes."""
        return _names_in(self.device, self.of.members)[self.ranks.start : self.ranks.stop]

    @property
    def environment(self) -> dict[str, str]:
        """Variables of its process."""
        threads = dict.fromkeys(THREAD_VARIABLES, str(self.group.threads))
        gpus = {"CUDA_VISIBLE_DEVICES": ",".join(map(str, self.gpus))} if self.gpus else {}
        return threads | gpus


@dataclass(frozen=True, slots=True)
class Teams:
    """Teams of a gang that are alike, one on each of some hosts."""

    first: Worker
    num_hosts: int

    @property
    def share(self) -> int:
        """Members on each host."""
        return len(self.first.ranks)

    def ranks(self, index: str) -> str:
        """Return which members a team has, for a shell.

        Args:
            index: name of the variable that counts the teams, from 0.
        """
        start = f"{self.first.ranks.start} + {index} * {self.share}"
        return f"$(({start}))-$(({start} + {self.share - 1}))"


def teams_of(workers: Sequence[Worker]) -> list[Teams]:
    """Return the teams of a gang, those of the first ranks first."""
    runs = [list(run) for _, run in groupby(workers, lambda own: (id(own.group), len(own.ranks)))]
    return [Teams(run[0], len(run)) for run in runs]


def in_teams(cluster: Cluster) -> list[list[Teams]]:
    """Return the gangs that are started team by team: on several hosts, or of several kinds."""
    every = [list(own) for _, own in groupby(workers_of(cluster), lambda own: own.device)]
    return [teams_of(own) for own in every if own[0].is_team or isinstance(own[0].of, GangGroup)]


def workers_of(
    cluster: Cluster, taken: Collection[str] = (), gpus_taken: Collection[int] = ()
) -> list[Worker]:
    """Return the workers of each device, which are dealt to the hosts of its group in blocks.

    Args:
        cluster: of the file.
        taken: names that others have.
        gpus_taken: places of GPUs of this machine that others use.
    """
    free = _Free(taken, gpus_taken)
    cards = _Cards(cluster, free)
    alone = [own for group in cluster.alone for own in _of_group(group, free)]
    gangs = list(_of_gangs(cluster, free, cards))
    return [*alone, *gangs, *_spares(cluster, gangs, free, cards)]


def named_gpus(worker: Worker, visible: Sequence[str]) -> tuple[str, ...]:
    """Return the GPUs of a worker of this machine, as CUDA names them; none where there is none.

    Args:
        worker: of this machine.
        visible: GPUs that this process sees.

    Raises:
        UserError: it is to have one beyond these.
    """
    if visible and any(gpu >= len(visible) for gpu in worker.gpus):
        raise UserError(
            f"{worker.name} is to have GPU {worker.gpus[-1] + 1} of this machine, but "
            f"{number_of(len(visible), 'GPU')} can be used; correct the cluster file, or let this "
            "command see more by CUDA_VISIBLE_DEVICES"
        )
    return tuple(visible[gpu] for gpu in worker.gpus) if visible else ()


def spares_in(cluster: Cluster) -> list[tuple[Spares, int]]:
    """Return the spares of a cluster that are alike, and how many of them there are."""
    found = [own.of for own in workers_of(cluster) if isinstance(own.of, Spares)]
    return [(of, len(list(alike))) for of, alike in groupby(found)]


@dataclass
class _Free:
    """Names and GPUs that are free."""

    taken: Collection[str]
    gpus_taken: Collection[int]
    _names: dict[str, Iterator[str]] = field(default_factory=dict)
    _gpus: dict[Host, Iterator[int]] = field(default_factory=dict)

    def name(self, of: Kind) -> str:
        """Return the next name of a kind that no process has, nor one of the gang's members."""
        names = self._names.setdefault(of.kind, (f"{of.kind}-{number}" for number in count()))
        return next(
            name for name in names if not set(_names_in(name, of.members)) & set(self.taken)
        )

    def gpus(self, group: DeviceGroup | RewardGroup, host: Host, number: int) -> tuple[int, ...]:
        """Return the next GPUs of a host; none, if the devices of a group are no GPUs."""
        used = self.gpus_taken if host is None else ()
        own = self._gpus.setdefault(host, (number for number in count() if number not in used))
        return tuple(islice(own, number if group.cuda else 0))


def _of_group(group: DeviceGroup | RewardGroup, free: _Free) -> Iterator[Worker]:
    """Yield the workers of a group whose devices are alike."""
    for hosts in _places(group):
        name, share = free.name(group), group.members // len(hosts)
        for part, host in enumerate(hosts):
            ranks = range(part * share, (part + 1) * share)
            gpus = free.gpus(group, host, share)
            yield Worker(name, group, group.site, group, host, gpus, ranks)


def _places(group: DeviceGroup | RewardGroup) -> Iterator[tuple[Host, ...]]:
    """Yield the hosts of each device of a group; more than one where gangs are on several."""
    each = group.gang_hosts if isinstance(group, DeviceGroup) else 1
    blocks: list[tuple[Host, ...]] = [
        group.hosts[first : first + each] for first in range(0, len(group.hosts), each)
    ] or [(None,) * each]
    for index in range(group.num_devices):
        yield blocks[index * len(blocks) // group.num_devices]


@dataclass
class _Cards:
    """Where the devices of a group are that are taken one by one."""

    cluster: Cluster
    free: _Free
    _found: dict[int, list[tuple[Host, tuple[int, ...]]]] = field(default_factory=dict)

    def of(self, card: Card) -> tuple[Host, tuple[int, ...]]:
        """Return the host of a device, and its GPU there."""
        if card.group not in self._found:
            group = self.cluster.devices[card.group]
            hosts = [host for (host,) in _places(group)]
            self._found[card.group] = [(host, self.free.gpus(group, host, 1)) for host in hosts]
        return self._found[card.group][card.number]


def _of_gangs(cluster: Cluster, free: _Free, cards_of: _Cards) -> Iterator[Worker]:
    """Yield the workers of gangs of unequal devices: of each, what one host has of one group."""
    for own, cards in cluster.dealt:
        name, site = free.name(own), cluster.devices[cards[0].group].site
        placed = [(rank, card.group, *cards_of.of(card)) for rank, card in enumerate(cards)]
        for (place, host), run in groupby(placed, lambda member: (member[1], member[2])):
            members = list(run)
            ranks = range(members[0][0], members[-1][0] + 1)
            gpus = tuple(gpu for *_, gpus in members for gpu in gpus)
            yield Worker(name, own, site, cluster.devices[place], host, gpus, ranks)


def _spares(
    cluster: Cluster, gangs: Sequence[Worker], free: _Free, cards_of: _Cards
) -> Iterator[Worker]:
    """Yield workers of the devices that gangs have left over, where these have such followers."""
    for card in cluster.left_over:
        group = cluster.devices[card.group]
        if places := _followers_like(group, gangs):
            of = Spares(group, places)
            yield Worker(free.name(of), of, "", group, *cards_of.of(card), range(1))


def _followers_like(group: DeviceGroup, gangs: Sequence[Worker]) -> tuple[str, ...]:
    """Return the followers of a group's kind and site; for all those of a gang its name."""
    found: list[str] = []
    for device, teams in groupby(gangs, lambda own: own.device):
        own = [
            (name, (team.group.kind, team.group.site) == (group.kind, group.site))
            for team in teams
            for name in team.names
            if name != device
        ]
        found += [device] if all(fits for _, fits in own) else [name for name, fits in own if fits]
    return tuple(found)


def _names_in(device: str, size: int) -> tuple[str, ...]:
    return (device, *followers_of(device, size))
