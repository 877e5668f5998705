"""Links between emulated devices: what crosses them takes as long as a scenario says.

Values of emulated devices are tiny, and say how many bytes real ones have. Dask's workers fetch
them as those of a real run; a worker of another site has to wait until as many bytes have crossed.
Each way of a link is a queue, as in a simulation (digen_core/sim/transfers.py), in one file that
all processes of the machine share.
"""

import asyncio
import fcntl
import struct
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path
from time import time
from typing import Any, Final

from distributed import Worker
from prefect import State

from digen_core.control.costs import Link
from digen_core.transport.weighty import Weighty
from tasks.body import value_of
from tasks.receipts import Received

LINKS: Final = "links"  # file in the folder of a run, of the queues

_GET_DATA: Final = "get_data"  # name of the handler by which Dask's workers fetch values
_FREE: Final = struct.Struct("d")  # when a way has nothing in its queue, seconds since the epoch


@dataclass(frozen=True)
class EmulatedValue(Weighty):
    """What stands for a value of which only the size matters."""

    real_bytes: float
    """Of the real value."""
    site: str
    """Where it was made."""

    @property
    def num_bytes(self) -> int:
        """Of the real value, as Dask counts them."""
        return round(self.real_bytes)


class EmulatedLinks:
    """The queues between the sites of a run."""

    def __init__(self, links: Sequence[Link], sites: Mapping[str, str], path: Path) -> None:
        """Begin with empty queues, or with those of another process.

        Args:
            links: between sites.
            sites: of devices, by address.
            path: of the file that keeps the queues; its folder must be there.
        """
        self._links = {link.sites: link for link in links}
        self._sites = sites
        self._path = path
        ways = (way for link in links for way in permutations(link.between))
        self._places = {way: _FREE.size * place for place, way in enumerate(ways)}
        with path.open("ab") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.truncate(_FREE.size * len(self._places))

    def pull(self, sources: Collection[str], address: str, num_bytes: float) -> list[Received]:
        """Put what devices send to one into the queues; return when each has arrived.

        Args:
            sources: addresses of the devices; of those at its site nothing is returned.
            address: of the device that is sent it.
            num_bytes: of what each of them sends.
        """
        started, site = time(), self._sites.get(address, "")
        ways = {source: (self._sites.get(source, ""), site) for source in sources}
        return [
            Received(source, round(num_bytes), started, self._arrival(way, num_bytes))
            for source, way in ways.items()
            if way in self._places
        ]

    def slow_down(self, worker: Worker) -> None:
        """Have workers at other sites wait for what they fetch of this one.

        What scores is at no site; of what it has fetched others take as long as of the device that
        made it.
        """
        at_once, own = worker.handlers[_GET_DATA], self._sites.get(worker.address, "")

        async def get_data(
            comm: Any, keys: Collection[str], who: str | None = None, **options: Any
        ) -> Any:
            site, sent = self._sites.get(who or "", ""), defaultdict[str, float](float)
            for key in keys:
                state = worker.data.get(key)
                value = value_of(state) if isinstance(state, State) else None
                if isinstance(value, EmulatedValue):
                    sent[own or value.site] += value.real_bytes
            ways = {(source, site): num for source, num in sent.items()}
            arrivals = [self._arrival(own, num) for own, num in ways.items() if own in self._places]
            await asyncio.sleep(max(arrivals, default=0.0) - time())
            return await at_once(comm, keys=keys, who=who, **options)

        worker.handlers[_GET_DATA] = get_data

    def _arrival(self, way: tuple[str, str], num_bytes: float) -> float:
        """Put bytes into the queue of a way; return when the last of them has arrived."""
        link = self._links[frozenset(way)]
        with self._path.open("r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(self._places[way])
            (free,) = _FREE.unpack(file.read(_FREE.size))
            free = max(float(free), time()) + num_bytes / link.bytes_per_second
            file.seek(self._places[way])
            file.write(_FREE.pack(free))
        return link.latency + free
