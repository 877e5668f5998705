"""The workers of a cluster file: name, roles, threads, GPU and host of each."""

from collections import Counter
from dataclasses import dataclass

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
        named = ["--name", self.name, "--resources", resources_of(self.group.declared)]
        if self.group.members > 1:
            named += ["--members", str(self.group.members)]
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


def workers_of(cluster: Cluster) -> list[Worker]:
    """Return a worker, or a gang, for each device, dealt to the hosts of its group in blocks."""
    numbers, used = Counter[str](), Counter[str | None]()
    workers = []
    for group in cluster.groups:
        total = group.num_devices
        for index in range(total):
            host = group.hosts[index * len(group.hosts) // total] if group.hosts else None
            name = f"{group.kind}-{numbers[group.kind]}"
            num_gpus = group.members if group.cuda else 0
            gpus = tuple(range(used[host], used[host] + num_gpus))
            workers.append(Worker(name, group, host, gpus))
            numbers[group.kind] += 1
            used[host] += num_gpus
    return workers
