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
    """A worker process, or a gang of them, as one command starts it: a device."""

    name: str
    group: DeviceGroup | RewardGroup
    host: str | None  # where it runs; None: on this machine, or wherever it is started
    gpus: tuple[int, ...]  # their numbers on the host; none: it has no GPU

    def arguments(self, tls: bool) -> list[str]:
        """Return those of ``tasks.worker.process``; DASK_SCHEDULER_ADDRESS names the scheduler.

        Args:
            tls: of the cluster. Who switches it off is asked no second time.
        """
        group = self.group
        named = ["--name", self.name, "--resources", resources_of(group.declared, group.site)]
        if group.members > 1:
            named += ["--members", str(group.members)]
        return named if tls else [*named, INSECURE]

    @property
    def names(self) -> tuple[str, ...]:
        """Names of its processes: its own, and those of its gang's other members."""
        return (self.name, *followers_of(self.name, self.group.members))

    @property
    def environment(self) -> dict[str, str]:
        """Variables of its process."""
        threads = dict.fromkeys(THREAD_VARIABLES, str(self.group.threads))
        gpus = {"CUDA_VISIBLE_DEVICES": ",".join(map(str, self.gpus))} if self.gpus else {}
        return threads | gpus


def workers_of(
    cluster: Cluster, taken: Collection[str] = (), gpus_taken: Collection[int] = ()
) -> list[Worker]:
    """Return a worker, or a gang, for each device, dealt to the hosts of its group in blocks.

    Args:
        cluster: of the file.
        taken: names that others have.
        gpus_taken: numbers of GPUs of this machine that others use.
    """
    names, gpus = dict[str, Iterator[str]](), dict[str | None, Iterator[int]]()
    gpus[None] = (number for number in count() if number not in gpus_taken)
    workers = []
    for group in cluster.groups:
        total, kind = group.num_devices, group.kind
        free = names.setdefault(kind, _free_names(kind, taken))
        for index in range(total):
            host = group.hosts[index * len(group.hosts) // total] if group.hosts else None
            num_gpus = group.members if group.cuda else 0
            own = tuple(islice(gpus.setdefault(host, count()), num_gpus))
            workers.append(Worker(next(free), group, host, own))
    return workers


def _free_names(kind: str, taken: Collection[str]) -> Iterator[str]:
    return (name for name in (f"{kind}-{number}" for number in count()) if name not in taken)
