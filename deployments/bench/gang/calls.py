"""A command inside a gang: what it adds to a task that members do together.

The leader calls a function that does nothing on all members and waits for their answers, as each
denoise task does. They are worker processes of this machine, as in a run; several hosts are
loopback addresses, between which all goes as between hosts, with TLS.
"""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median, quantiles
from time import perf_counter
from typing import Final

import dask
import numpy as np
from distributed import Client, SpecCluster
from rich.console import Console

from deployments.views.terminal import borderless, terminal
from digen_core.control.protocol import followers_of
from tasks.cluster.cluster import settings_of_workers, worker_process
from tasks.cluster.listening import own_scheduler, own_tls_settings
from tasks.cluster.presence import present_workers
from tasks.cluster.spares import MEMBER, MEMBERS
from tasks.gang.forming import form_gang
from tasks.gang.together import together

MOST_MS: Final = 3.0
"""What a command without arguments may take, in milliseconds, at the median."""
ARGUMENT_BYTES: Final = (0, 1 << 20)
"""Of the arguments: none, and what the latents of an image of 1024 x 1024 take in float32."""
_WARM_UP: Final = 50


@dataclass(frozen=True, slots=True)
class Cost:
    """Milliseconds of each command of a gang."""

    num_members: int
    num_bytes: int  # of the arguments
    milliseconds: Sequence[float]

    @property
    def holds(self) -> bool:
        """Whether it is within the limit, which is one of commands without arguments."""
        return self.num_bytes > 0 or median(self.milliseconds) <= MOST_MS


def bench_gang(members: Sequence[int], num_hosts: int, num_commands: int) -> list[Cost]:
    """Measure the commands of gangs.

    Args:
        members: how many the gangs have, each at least 2; one gang after the other.
        num_hosts: over which the members of each are dealt.
        num_commands: of each gang and size of arguments, after some that warm up.
    """
    return [cost for size in members for cost in _costs(size, num_hosts, num_commands)]


def _costs(size: int, num_hosts: int, num_commands: int) -> list[Cost]:
    hosts = [f"127.0.0.{1 + rank * num_hosts // size}" for rank in range(size)]
    with gang_cluster(hosts) as client:
        (leader,) = (worker for worker in present_workers(client).values() if worker.size > 1)
        form_gang(client, leader.address, list(leader.followers.values()))
        return [
            Cost(
                size,
                num_bytes,
                client.submit(
                    _command, num_commands, num_bytes, workers=[leader.address], pure=False
                ).result(),
            )
            for num_bytes in ARGUMENT_BYTES
        ]


@contextmanager
def gang_cluster(hosts: Sequence[str]) -> Iterator[Client]:
    """Yield a client of a cluster with TLS that is one gang.

    Args:
        hosts: loopback address of each member, the leader's first.
    """
    members = {"gang": worker_process({MEMBERS: len(hosts)}, host=hosts[0])}
    for name, host in zip(followers_of("gang", len(hosts)), hosts[1:], strict=True):
        members[name] = worker_process({MEMBER: 1}, host=host)
    settings = settings_of_workers(num_threads=1) | own_tls_settings(tls=True)
    scheduler = own_scheduler(tls=True)
    with (
        dask.config.set(settings),
        SpecCluster(scheduler=scheduler, workers=members, silence_logs=logging.ERROR) as cluster,
        Client(cluster.scheduler_address, set_as_default=False) as client,
    ):
        yield client


def _command(count: int, num_bytes: int) -> list[float]:
    """Give commands, on the leader; return the milliseconds that each took."""
    argument, milliseconds = np.zeros(num_bytes, np.uint8), []
    for _ in range(_WARM_UP + count):
        started = perf_counter()
        _nothing(argument)
        milliseconds.append((perf_counter() - started) * 1e3)
    return milliseconds[_WARM_UP:]


@together
def _nothing(argument: np.ndarray) -> None:
    """Do nothing, on all members."""


def print_bench(costs: Sequence[Cost], console: Console | None = None) -> None:
    """Print medians and tails, and whether the limit holds."""
    table = borderless(f"milliseconds of a command, {len(costs[0].milliseconds)} of each")
    for heading in ("members", "arguments", "median", "99%"):
        table.add_column(heading, justify="right")
    for cost in costs:
        tail = quantiles(cost.milliseconds, n=100)[-1]
        size = f"{cost.num_bytes / 1e6:.1f} MB" if cost.num_bytes else "none"
        middle = median(cost.milliseconds)
        table.add_row(str(cost.num_members), size, f"{middle:.2f}", f"{tail:.2f}")
    console = console or terminal()
    console.print(table)
    holds = all(cost.holds for cost in costs)
    console.print(
        f"without arguments at most {MOST_MS:.0f} ms at the median: "
        + ("holds" if holds else "NOT met")
    )
