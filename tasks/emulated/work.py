"""What an emulated device works with: what things cost, reward servers, and links to others."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from queue import PriorityQueue
from threading import Semaphore, Thread
from time import sleep, time
from typing import Any

from distributed import Worker, get_worker

from digen_core.sim.emulated_config import EmulatedConfig
from tasks.emulated.links import LINKS, EmulatedLinks
from tasks.receipts import Ran, Received, attach
from tasks.worker.transfers import crossing, received


class RewardServers:
    """Threads that each score one sample at a time; the lowest priority number is the first."""

    def __init__(self, num_servers: int) -> None:
        self._waiting: PriorityQueue[tuple[Any, ...]] = PriorityQueue()
        self._numbers = count()
        for _ in range(num_servers):
            Thread(target=self._serve, daemon=True).start()

    def score(self, priority: tuple[int, int], seconds: list[float]) -> None:
        """Return when each sample has had its seconds of a server."""
        scored = Semaphore(0)
        for needed in seconds:
            self._waiting.put((priority, next(self._numbers), needed, scored))
        for _ in seconds:
            scored.acquire()

    def _serve(self) -> None:
        while True:
            *_, needed, scored = self._waiting.get()
            sleep(needed)
            scored.release()


@dataclass(frozen=True, slots=True)
class _Emulation:
    """What the emulated devices of one process share."""

    config: EmulatedConfig
    servers: RewardServers
    links: EmulatedLinks


_emulations: dict[str, _Emulation] = {}  # by run


def know_costs(
    run_id: str,
    config: EmulatedConfig,
    sites: Mapping[str, str],
    run_dir: Path,
    dask_worker: Worker,
) -> None:
    """Have this process know what the work of a run costs, and what crosses links wait.

    Args:
        run_id: of the run.
        config: of the run.
        sites: of its devices, by address.
        run_dir: folder of the run.
        dask_worker: one of this process.
    """
    if run_id not in _emulations:
        links = EmulatedLinks(config.costs.links, sites, run_dir / LINKS)
        servers = RewardServers(config.costs.reward_servers)
        _emulations[run_id] = _Emulation(config, servers, links)
    if config.costs.links:
        _emulations[run_id].links.slow_down(dask_worker)


class EmulatedWork:
    """A body at work on an emulated device."""

    def __init__(self, run_id: str) -> None:
        self._emulation = _emulations[run_id]
        self._address = get_worker().address
        self._pulled: list[Received] = []
        self.config = self._emulation.config
        self.device = str(get_worker().name)
        self.started = time()

    def score(self, priority: tuple[int, int], seconds: list[float]) -> None:
        """Return when each sample has had its seconds of a reward server."""
        self._emulation.servers.score(priority, seconds)

    @property
    def site(self) -> str:
        """Where the device is."""
        return self.config.devices[self.device].site

    def pull(self, sources: Sequence[str], num_bytes: float) -> float:
        """Be sent so much by each of some devices, by address; return when all is there."""
        self._pulled = self._emulation.links.pull(sources, self._address, num_bytes)
        return max((own.ended for own in self._pulled), default=self.started)

    @property
    def received(self) -> list[Received]:
        """What other devices sent; of scenarios without links nothing."""
        return self._pulled + received() if self.config.costs.links else []


@contextmanager
def working(run_id: str) -> Iterator[EmulatedWork]:
    """Give a body what it works with; put its span on the receipt."""
    work = EmulatedWork(run_id)
    yield work
    came = work.received
    num_bytes = sum(own.num_bytes for own in came)
    attach(Ran(work.device, work.started, time(), num_bytes, received=crossing(came)))
