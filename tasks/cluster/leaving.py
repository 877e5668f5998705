"""Leaving: a worker that is to go is marked at the scheduler, where a run that has it sees that.

The run lets it go when it needs nothing any more that the worker has. Dask then moves what values
are there to other workers, and ends the worker and the nanny that would start another one.
"""

import asyncio
from collections.abc import Collection, Sequence
from contextlib import suppress
from time import sleep
from typing import Final

from distributed import Client, Lock, Scheduler, Status

from digen_core.errors import UserError
from tasks.cluster.calls import on_scheduler
from tasks.cluster.presence import (
    LEAVING,
    MEMBER,
    SITE,
    Presence,
    present_workers,
    workers_of_pools,
)

MOVE_SECONDS: Final = 60.0  # until what a worker holds is elsewhere
POLL_SECONDS: Final = 1.0


def leave(client: Client, name: str) -> None:
    """Have a worker, or the gang that it leads, leave, and wait until it is gone.

    Where no run has the cluster, or the worker only scores, it goes at once.

    Raises:
        UserError: there is no such worker, or it is the last of its pool.
        SchedulerLostError: the scheduler does not answer.
    """
    worker = _named(client, name)
    if not worker.roles:
        _require_another(client, worker)
        let_go(client, [worker.address])
    else:
        ask_to_leave(client, worker.address)
    lock = lock_of_run(client)
    while worker.address in present_workers(client):
        if lock.acquire(timeout=POLL_SECONDS):  # no run has it, or none any more
            try:
                let_go(client, [worker.address, *worker.followers.values()])
            finally:
                lock.release()
            sleep(POLL_SECONDS)


def lock_of_run(client: Client) -> Lock:
    """Return the lock of the run that has a cluster: a worker holds the model of one run."""
    return Lock("digen-run", scheduler_rpc=client.scheduler, loop=client.loop)


def ask_to_leave(client: Client, address: str) -> None:
    """Mark a worker as one that is to leave: its run sees that.

    Raises:
        SchedulerLostError: the scheduler does not answer.
    """
    on_scheduler(client, _mark, address=address)


def let_go(client: Client, addresses: Sequence[str]) -> None:
    """Have Dask move what workers hold to others, and end them; it goes on meanwhile.

    Of those that are about to go nothing is asked again.

    Raises:
        SchedulerLostError: the scheduler does not answer.
    """
    on_scheduler(client, _let_go, addresses=list(addresses))


def _named(client: Client, name: str) -> Presence:
    workers = {worker.name: worker for worker in present_workers(client).values()}
    if name not in workers:
        there = ", ".join(sorted(workers)) or "none"
        raise UserError(f"no worker of the cluster is called {name!r}; there are {there}")
    if MEMBER in workers[name].resources:
        leader = name.rpartition(".")[0]
        raise UserError(f"{name} is a member of a gang, which leaves whole: name {leader}")
    return workers[name]


def _require_another(client: Client, worker: Presence) -> None:
    pools = [own for own in worker.resources if not own.startswith(SITE)]
    for pool, names in workers_of_pools(client, pools).items():
        if names == [worker.name]:
            raise UserError(
                f"{worker.name} is the last worker of the pool {pool!r}; start another one first, "
                "or end it"
            )


def _mark(address: str, dask_scheduler: Scheduler) -> None:
    if worker := dask_scheduler.workers.get(address):
        worker.extra[LEAVING] = True


def _let_go(addresses: Collection[str], dask_scheduler: Scheduler) -> None:
    workers = dask_scheduler.workers
    staying = [at for at in addresses if at in workers and not _is_closing(workers[at].status)]
    if staying:
        dask_scheduler._ongoing_background_tasks.call_soon(_retire, dask_scheduler, staying)


def _is_closing(status: Status) -> bool:
    return status in (Status.closing, Status.closing_gracefully, Status.closed)


async def _retire(scheduler: Scheduler, addresses: list[str]) -> None:
    """Retire workers; what cannot be moved, as it is too much or a worker hangs, is lost."""
    retiring = scheduler.retire_workers(workers=addresses, close_workers=True, stimulus_id="leave")
    with suppress(TimeoutError):
        await asyncio.wait_for(retiring, MOVE_SECONDS)
    for address in addresses:
        if address in scheduler.workers:
            await scheduler.remove_worker(address, stimulus_id="leave")
