"""The workers of a cluster file: name, roles, threads, GPU and host of each."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from itertools import count, islice

from digen_core.control.protocol import followers_of
from digen_core.planning.cluster import Cluster
from digen_core.planning.groups import DeviceGroup, RewardGroup
from tasks.cluster.listening import INSECURE
from tasks.cluster.start_method import THREAD_VARIABLES
from tasks.worker.process import resources_of


@dataclass(frozen=True, slots=True)
class Worker:
    """What one command starts on one host: a worker process, or members of a gang."""

    device: str
    group: DeviceGroup | RewardGroup
    host: str | None  # where it runs; None: on this machine, or wherever it is started
    gpus: tuple[int, ...]  # their numbers on the host; none: it has no GPU
    ranks: range  # of the gang's members

    @property
    def name(self) -> str:
        """Name of its first process."""
        return self.names[0]

    def arguments(self, tls: bool) -> list[str]:
        """Return those of ``tasks.worker.process``; DASK_SCHEDULER_ADDRESS names the scheduler.

        Args:
            tls: of the cluster. Who switches it off is asked no second time.
        """
        group = self.group
        named = ["--name", self.device, "--resources", resources_of(group.declared, group.site)]
        if group.members > 1:
            named += ["--members", str(group.members)]
        if len(self.ranks) < group.members:
            named += ["--ranks", f"{self.ranks[0]}-{self.ranks[-1]}"]
        return named if tls else [*named, INSECURE]

    @property
    def names(self) -> tuple[str, ...]:
        """Names of its processes."""
        every = (self.device, *followers_of(self.device, self.group.members))
        return every[self.ranks.start : self.ranks.stop]

    @property
    def environment(self) -> dict[str, str]:
        """Variables of its process."""
        threads = dict.fromkeys(THREAD_VARIABLES, str(self.group.threads))
        gpus = {"CUDA_VISIBLE_DEVICES": ",".join(map(str, self.gpus))} if self.gpus else {}
        return threads | gpus


def workers_of(
    cluster: Cluster, taken: Collection[str] = (), gpus_taken: Collection[int] = ()
) -> list[Worker]:
    """Return the workers of each device, which are dealt to the hosts of its group in blocks.

    Args:
        cluster: of the file.
        taken: names that others have.
        gpus_taken: numbers of GPUs of this machine that others use.
    """
    names, gpus = dict[str, Iterator[str]](), dict[str | None, Iterator[int]]()
    gpus[None] = (number for number in count() if number not in gpus_taken)
    workers = []
    for group in cluster.groups:
        free = names.setdefault(group.kind, _free_names(group.kind, taken))
        for hosts in _places(group):
            name, share = next(free), group.members // len(hosts)
            for part, host in enumerate(hosts):
                own = gpus.setdefault(host, count())
                numbers = tuple(islice(own, share if group.cuda else 0))
                ranks = range(part * share, (part + 1) * share)
                workers.append(Worker(name, group, host, numbers, ranks))
    return workers


def _places(group: DeviceGroup | RewardGroup) -> Iterator[tuple[str | None, ...]]:
    """Yield the hosts of each device of a group; more than one where gangs are on several."""
    each = group.gang_hosts if isinstance(group, DeviceGroup) else 1
    blocks: list[tuple[str | None, ...]] = [
        group.hosts[first : first + each] for first in range(0, len(group.hosts), each)
    ] or [(None,)]
    for index in range(group.num_devices):
        yield blocks[index * len(blocks) // group.num_devices]


def _free_names(kind: str, taken: Collection[str]) -> Iterator[str]:
    return (name for name in (f"{kind}-{number}" for number in count()) if name not in taken)
