"""Workers of this process that come to a cluster and go."""

from collections.abc import Iterator
from contextlib import contextmanager

from distributed import Client, Scheduler, SpecCluster, Worker

from support.waiting import comes_to
from tasks.cluster.presence import Presence, present_workers

HERE = {"host": "127.0.0.1", "dashboard_address": None}


class Workers:
    """Those that are there, as a run sees them."""

    def __init__(self, cluster: SpecCluster, client: Client) -> None:
        self.cluster, self.client = cluster, client

    def come(self, name: str, *resources: str, **counted: int) -> None:
        declared = {**dict.fromkeys(resources, 1), **counted}
        options = {"resources": declared, "nthreads": 1, **HERE}
        self.cluster.worker_spec[name] = {"cls": Worker, "options": options}
        self.cluster.sync(self.cluster._correct_state)
        self.cluster.sync(lambda: self.cluster)

    def go(self, name: str) -> None:
        del self.cluster.worker_spec[name]
        self.cluster.sync(self.cluster._correct_state)
        assert comes_to(lambda: name not in self.seen)

    @property
    def seen(self) -> dict[str, Presence]:
        return {own.name: own for own in present_workers(self.client).values()}

    @property
    def holder(self) -> str | None:
        """Who has the place of room.1: the name of the worker at its address."""
        address = self.seen["room"].followers.get("room.1")
        return next((name for name, own in self.seen.items() if own.address == address), None)


@contextmanager
def coming_workers() -> Iterator[Workers]:
    """Yield a cluster without workers."""
    scheduler = {"cls": Scheduler, "options": HERE}
    with (
        SpecCluster(scheduler=scheduler, workers={}) as cluster,
        Client(cluster.scheduler_address, set_as_default=False) as client,
    ):
        yield Workers(cluster, client)
