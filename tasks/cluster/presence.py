"""Presence: the workers that a cluster has now, and what the scheduler last heard from each."""

import asyncio
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from distributed import Client, Nanny, Scheduler
from distributed.core import rpc
from distributed.metrics import time
from distributed.protocol.pickle import dumps

from digen_core.control.protocol import Device, Role, followers_of
from digen_core.errors import UserError
from tasks.cluster.calls import on_scheduler, on_workers

ROLES: Final[tuple[Role, ...]] = ("rollout", "trainer")
KILL_SECONDS: Final = 20.0
KIND_SECONDS: Final = 60.0  # a process that asks its GPU for the first time takes some


MEMBERS: Final = "members"
"""Dask resource that the leader of a gang declares beside its roles: workers of the gang."""
MEMBER: Final = "member"
"""Dask resource that its followers declare, in place of roles."""
SITE: Final = "site:"
"""Begins the Dask resource by which a worker declares where it is."""
LEAVING: Final = "digen-leaving"
"""Key of what the scheduler knows of a worker that was asked to leave."""


@dataclass(frozen=True, slots=True)
class Presence:
    """A worker as the scheduler knows it, with the followers that are there if it leads a gang."""

    name: str
    address: str
    resources: frozenset[str]
    silent_seconds: float
    """Since its last heartbeat; workers send one every 0.5 to 2 seconds, whatever they compute."""

    executing: Mapping[str, float] = field(default_factory=dict)
    """Dask's keys of the tasks that run there -> for how many seconds, at the last heartbeat."""

    size: int = 1
    """Workers of the gang that it leads."""
    followers: Mapping[str, str] = field(default_factory=dict)
    """Names of those of its followers that are there, on whatever host -> their addresses."""
    is_leaving: bool = False
    """It was asked to leave."""

    @property
    def roles(self) -> frozenset[Role]:
        """The roles that it declares."""
        return frozenset(role for role in ROLES if role in self.resources)

    @property
    def site(self) -> str:
        """Where it is, as it declares, a gang as its leader does; empty if it does not."""
        return site_in(self.resources)

    @property
    def lacks(self) -> list[str]:
        """Names of the followers of its gang that are not there."""
        return [name for name in followers_of(self.name, self.size) if name not in self.followers]


def site_in(resources: Iterable[str]) -> str:
    """Return the site that is among the resources of a worker; empty if there is none."""
    sites = sorted(own for own in resources if own.startswith(SITE))
    return sites[0].removeprefix(SITE) if sites else ""


def present_workers(client: Client) -> dict[str, Presence]:
    """Return the workers that the scheduler has now, by address.

    ``Client.scheduler_info`` will not do: every two seconds the client asks for itself, for an
    answer without workers, and that may take the place of ours before it is returned.

    Raises:
        SchedulerLostError: the scheduler does not answer.
    """
    found = on_scheduler(client, _look)
    members = {name: at for at, (name, resources, *_) in found.items() if MEMBER in resources}
    seen = {}
    for address, (name, resources, silent, executing, leaving) in found.items():
        size = int(resources.get(MEMBERS, 1))
        followers = {
            other: members[other] for other in followers_of(name, size) if other in members
        }
        declared = frozenset(resources)
        seen[address] = Presence(
            name, address, declared, silent, executing, size, followers, leaving
        )
    return seen


_Look = tuple[str, dict[str, float], float, dict[str, float], bool]


def _look(dask_scheduler: Scheduler) -> dict[str, _Look]:
    now = time()
    return {
        ws.address: (
            str(ws.name),
            dict(ws.resources),
            now - ws.last_seen,
            {str(task.key): float(seconds) for task, seconds in ws.executing.items()},
            LEAVING in ws.extra,
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


def devices_among(client: Client, workers: Iterable[Presence]) -> list[Device]:
    """Return the devices that workers are, with the roles that they declare, by name.

    Devices of one kind, what they compute on, are taken to be equally fast. Workers that do not
    answer are left out.
    """
    by_address = {worker.address: worker for worker in workers}
    found = on_workers(client, by_address.keys(), processor, seconds=KIND_SECONDS)
    devices = []
    for address, kind in found.items():
        worker = by_address[address]
        if worker.size > 1:
            kind = f"{kind} x{worker.size}"
        devices.append(Device(worker.name, worker.roles, kind, worker.size, worker.site))
    return sorted(devices, key=lambda device: device.name)


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
        tasks = dask_scheduler._ongoing_background_tasks
        tasks.call_soon(_have_killed, dask_scheduler, worker.nanny, address)


async def _have_killed(dask_scheduler: Scheduler, nanny: str, address: str) -> None:
    """Have a nanny kill a worker's process; it starts another one by itself."""
    asked = {"function": dumps(_kill), "kwargs": dumps({"address": address})}
    try:
        async with rpc(nanny, connection_args=dask_scheduler.connection_args) as connection:
            await asyncio.wait_for(connection.run(**asked), KILL_SECONDS)
    except (OSError, TimeoutError):  # the whole machine does not answer
        return


async def _kill(address: str, dask_worker: Nanny) -> None:
    # A worker may have seen that it was dismissed: then another one has its place already.
    if dask_worker.worker_address == address:
        await dask_worker.kill(reason="it does not answer")


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
