"""Leaving: a worker that is to go is marked at the scheduler, where a run that has it sees that.

The run lets it go when it needs nothing any more that the worker has. Dask then moves what values
are there to other workers, and ends the worker and the nanny that would start another one. A gang
goes with all its followers; a spare that has the place of one is started anew, as an idle one.
"""

import asyncio
from contextlib import suppress
from time import sleep
from typing import Final

from distributed import Client, Lock, Scheduler, Status
from distributed.scheduler import WorkerState

from digen_core.control.protocol import followers_of
from digen_core.errors import UserError
from tasks.cluster.calls import on_scheduler
from tasks.cluster.presence import SITE, Presence, dismissed, present_workers, workers_of_pools
from tasks.cluster.spares import LEAVING, MEMBER, MEMBERS, PLACE, SPARE

MOVE_SECONDS: Final = 60.0  # until what a worker holds is elsewhere
POLL_SECONDS: Final = 1.0


def leave(client: Client, name: str) -> None:
    """Have a worker, or the gang that it leads, leave, and wait until it is gone.

    Where no run has the cluster, or the worker only scores or is an idle spare, it goes at once.

    Raises:
        UserError: there is no such worker, or it is the last of its pool.
        SchedulerLostError: the scheduler does not answer.
    """
    worker = _named(client, name)
    if not worker.roles:
        _require_another(client, worker)
    ask_to_leave(client, worker.address)
    if not worker.roles:
        let_go(client, worker.address)
    lock = lock_of_run(client)
    while worker.address in present_workers(client):
        if lock.acquire(timeout=POLL_SECONDS):  # no run has it, or none any more
            try:
                let_go(client, worker.address)
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


def let_go(client: Client, address: str) -> None:
    """Have Dask move what a device's workers hold to others, and end them; it goes on meanwhile.

    Of those that are about to go nothing is asked again. Spares of a gang become idle.

    Args:
        client: of the cluster.
        address: of the worker, of a gang of its leader.

    Raises:
        SchedulerLostError: the scheduler does not answer.
    """
    on_scheduler(client, _let_go, address=address)


def _named(client: Client, name: str) -> Presence:
    workers = {worker.name: worker for worker in present_workers(client).values()}
    if name not in workers:
        there = ", ".join(sorted(workers)) or "none"
        raise UserError(f"no worker of the cluster is called {name!r}; there are {there}")
    worker = workers[name]
    leader = (worker.place or name).rpartition(".")[0]
    if MEMBER in worker.resources:
        raise UserError(f"{name} is a member of a gang, which leaves whole: name {leader}")
    if worker.place and leader in workers:
        raise UserError(
            f"{name} has the place of {worker.place} as a spare, and a gang leaves whole: name "
            f"{leader}; then {name} is idle, and may leave, too"
        )
    return worker


def _require_another(client: Client, worker: Presence) -> None:
    pools = [own for own in worker.resources if not own.startswith((SITE, SPARE))]
    for pool, names in workers_of_pools(client, pools).items():
        if names == [worker.name]:
            raise UserError(
                f"{worker.name} is the last worker of the pool {pool!r}; start another one first, "
                "or end it"
            )


def _mark(address: str, dask_scheduler: Scheduler) -> None:
    if worker := dask_scheduler.workers.get(address):
        worker.extra[LEAVING] = True


async def _let_go(address: str, dask_scheduler: Scheduler) -> None:
    worker = dask_scheduler.workers.get(address)
    if worker is None:
        return
    names = set(followers_of(str(worker.name), int(worker.resources.get(MEMBERS, 1))))
    others = list(dask_scheduler.workers.values())
    own = [ws for ws in others if MEMBER in ws.resources and str(ws.name) in names]
    staying = [ws.address for ws in (worker, *own) if not _is_closing(ws)]
    if staying:
        dask_scheduler._ongoing_background_tasks.call_soon(_retire, dask_scheduler, staying)
    for spare in [ws for ws in others if ws.extra.get(PLACE) in names]:
        await dismissed(spare.address, dask_scheduler)


def _is_closing(worker: WorkerState) -> bool:
    return worker.status in (Status.closing, Status.closing_gracefully, Status.closed)


async def _retire(scheduler: Scheduler, addresses: list[str]) -> None:
    """Retire workers; what cannot be moved, as it is too much or a worker hangs, is lost."""
    retiring = scheduler.retire_workers(workers=addresses, close_workers=True, stimulus_id="leave")
    with suppress(TimeoutError):
        await asyncio.wait_for(retiring, MOVE_SECONDS)
    for address in addresses:
        if address in scheduler.workers:
            await scheduler.remove_worker(address, stimulus_id="leave")
