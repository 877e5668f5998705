"""Presence: the workers that a cluster has now, and what the scheduler last heard from each."""

import asyncio
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from distributed import Client, Scheduler
from distributed.core import rpc
from distributed.metrics import time

from digen_core.control.protocol import Role
from digen_core.errors import UserError
from tasks.cluster.calls import on_scheduler, on_workers

ROLES: Final[tuple[Role, ...]] = ("rollout", "trainer")
KILL_SECONDS: Final = 20.0
KIND_SECONDS: Final = 60.0  # a process that asks its GPU for the first time takes some


@dataclass(frozen=True, slots=True)
class Presence:
    """A worker as the scheduler knows it."""

    name: str
    address: str
    resources: frozenset[str]
    silent_seconds: float
    """Since its last heartbeat; workers send one every 0.5 to 2 seconds, whatever they compute."""

    executing: Mapping[str, float] = field(default_factory=dict)
    """Dask's keys of the tasks that run there -> for how many seconds, at the last heartbeat."""

    @property
    def roles(self) -> frozenset[Role]:
        """The roles that it declares."""
        return frozenset(role for role in ROLES if role in self.resources)


def present_workers(client: Client) -> dict[str, Presence]:
    """Return the workers that the scheduler has now, by address.

    ``Client.scheduler_info`` will not do: every two seconds the client asks for itself, for an
    answer without workers, and that may take the place of ours before it is returned.

    Raises:
        SchedulerLostError: the scheduler does not answer.
    """
    return {
        address: Presence(name, address, frozenset(resources), silent, executing)
        for address, (name, resources, silent, executing) in on_scheduler(client, _look).items()
    }


def _look(dask_scheduler: Scheduler) -> dict[str, tuple[str, list[str], float, dict[str, float]]]:
    now = time()
    return {
        ws.address: (
            str(ws.name),
            list(ws.resources),
            now - ws.last_seen,
            {str(task.key): float(seconds) for task, seconds in ws.executing.items()},
        )
        for ws in dask_scheduler.workers.values()
    }


def addresses_of(client: Client, names: Collection[str]) -> dict[str, str]:
    """Return each worker's address now; a restarted worker comes back with another one."""
    found = present_workers(client).values()
    return {worker.name: worker.address for worker in found if worker.name in names}


def workers_of_pools(client: Client, pools: Iterable[str]) -> dict[str, list[str]]:
    """Return the names of the workers that each pool has now."""
    workers = present_workers(client).values()
    return {
        pool: sorted(worker.name for worker in workers if pool in worker.resources)
        for pool in pools
    }


def require_pools(client: Client, pools: Iterable[str]) -> None:
    """Check that every pool has a worker.

    Raises:
        UserError: one has none.
    """
    for pool, names in workers_of_pools(client, pools).items():
        if not names:
            raise UserError(
                f"no worker of the cluster is in the pool {pool!r}, which a reward names; start "
                f"one with: digen worker SCHEDULER --name {pool}-0 --pool {pool}"
            )


def kinds_of(client: Client, addresses: Collection[str]) -> dict[str, str]:
    """Return what each worker computes on; devices of one kind are taken to be equally fast.

    Workers that do not answer are left out.
    """
    return on_workers(client, addresses, processor, seconds=KIND_SECONDS)


def processor() -> str:
    """Return what this process computes on."""
    import torch

    return torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"


def dismiss(client: Client, address: str) -> None:
    """Take a worker that hangs or is silent out of the cluster, and have its nanny replace it.

    Nothing that it still sends is taken; what it held counts as lost.

    Raises:
        SchedulerLostError: the scheduler does not answer.
    """
    on_scheduler(client, _dismiss, address=address)


async def _dismiss(address: str, dask_scheduler: Scheduler) -> None:
    worker = dask_scheduler.workers.get(address)
    if worker is None:
        return
    # Asked to close, a worker would tell its nanny not to start another one in its place.
    await dask_scheduler.remove_worker(address, stimulus_id=f"dismiss-{address}", close=False)
    if worker.nanny:
        dask_scheduler._ongoing_background_tasks.call_soon(_kill, dask_scheduler, worker.nanny)


async def _kill(dask_scheduler: Scheduler, nanny: str) -> None:
    """Have a nanny kill its worker's process; it starts another one by itself."""
    try:
        async with rpc(nanny, connection_args=dask_scheduler.connection_args) as connection:
            await asyncio.wait_for(connection.kill(reason="it does not answer"), KILL_SECONDS)
    except (OSError, TimeoutError):  # the whole machine does not answer
        return


def recompute_elsewhere(client: Client, lost: Collection[str], address: str) -> None:
    """Let a worker compute again what others wait for and only lost workers had.

    Tasks are pinned to their workers, so Dask would wait for the lost ones for ever.

    Args:
        client: of the cluster.
        lost: addresses of the lost workers.
        address: of the worker that takes their place.

    Raises:
        SchedulerLostError: the scheduler does not answer.
    """
    on_scheduler(client, _move_what_is_needed, lost=set(lost), address=address)


def _move_what_is_needed(lost: set[str], address: str, dask_scheduler: Scheduler) -> None:
    if address not in dask_scheduler.workers:  # it is the next one to be lost
        return
    tasks = dask_scheduler.tasks.values()
    lost_tasks = {task for task in tasks if lost & (task.worker_restrictions or set())}
    needed: list[Any] = [t for t in tasks if t.state == "waiting" and t not in lost_tasks]
    while needed:
        for task in needed.pop().dependencies & lost_tasks:
            if task.state != "memory":
                lost_tasks.remove(task)
                task.worker_restrictions = {address}
                needed.append(task)
    worker = dask_scheduler.workers[address]
    runnable = dask_scheduler.bulk_schedule_unrunnable_after_adding_worker(worker)
    dask_scheduler.transitions(runnable, stimulus_id=f"{', '.join(sorted(lost))} lost")
