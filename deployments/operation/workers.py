"""The workers of a cluster file: name, roles, threads, GPU and host of each."""

from collections import Counter
from dataclasses import dataclass

from digen_core.planning.cluster import Cluster
from digen_core.planning.groups import DeviceGroup, RewardGroup
from tasks.cluster.listening import INSECURE
from tasks.cluster.start_method import THREAD_VARIABLES
from tasks.worker.process import resources_of


@dataclass(frozen=True, slots=True)
class Worker:
    """A worker process: one device, one task at a time."""

    name: str
    group: DeviceGroup | RewardGroup
    host: str | None  # where it runs; None: on this machine, or wherever it is started
    gpu: int | None  # its number on the host

    def arguments(self, tls: bool) -> list[str]:
        """Return those of ``tasks.worker.process``; DASK_SCHEDULER_ADDRESS names the scheduler.

        Args:
            tls: of the cluster. Who switches it off is asked no second time.
        """
        named = ["--name", self.name, "--resources", resources_of(self.group.declared)]
        return named if tls else [*named, INSECURE]

    @property
    def environment(self) -> dict[str, str]:
        """Variables of its process."""
        threads = dict.fromkeys(THREAD_VARIABLES, str(self.group.threads))
        gpu = {} if self.gpu is None else {"CUDA_VISIBLE_DEVICES": str(self.gpu)}
        return threads | gpu


def workers_of(cluster: Cluster) -> list[Worker]:
    """Return a worker for each device, dealt to the hosts of its group in blocks."""
    numbers, used = Counter[str](), Counter[str | None]()
    workers = []
    for group in cluster.groups:
        for index in range(group.count):
            host = group.hosts[index * len(group.hosts) // group.count] if group.hosts else None
            name = f"{group.kind}-{numbers[group.kind]}"
            gpu = used[host] if group.cuda else None
            workers.append(Worker(name, group, host, gpu))
            numbers[group.kind] += 1
            used[host] += group.cuda
    return workers
