"""Presence: the workers that a cluster has now, and what the scheduler last heard from each."""

import asyncio
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from distributed import Client, Nanny, Scheduler
from distributed.core import rpc
from distributed.metrics import time
from distributed.protocol.pickle import dumps

from digen_core.control.protocol import Device, Role, followers_of
from digen_core.errors import UserError
from tasks.cluster.calls import on_scheduler, on_workers
from tasks.cluster.spares import MEMBER, MEMBERS, RESTART_SECONDS, Declared, take_places

ROLES: Final[tuple[Role, ...]] = ("rollout", "trainer")
KILL_SECONDS: Final = 20.0
KIND_SECONDS: Final = 60.0  # a process that asks its GPU for the first time takes some

SITE: Final = "site:"
"""Begins the Dask resource by which a worker declares where it is."""


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
    """Names of those of its followers that are there, on whatever host -> their addresses; in the
    place of one that was lost, the address of a spare."""
    spares: Mapping[str, str] = field(default_factory=dict)
    """Names of its followers whose place a spare has -> the spare's name."""
    place: str = ""
    """Name of the follower whose place it has as a spare."""
    idle_for: frozenset[str] = frozenset()
    """Gangs, and followers, whose place it may take now, as an idle spare."""
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


def places_of_nobody(workers: Sequence[Presence]) -> dict[str, list[str]]:
    """Return of idle spares which of the names that they are for no gang, and no follower, has.

    Args:
        workers: that are there.
    """
    places = {
        name
        for leader in workers
        if leader.size > 1
        for name in (leader.name, *followers_of(leader.name, leader.size))
    }
    return {own.name: odd for own in workers if (odd := sorted(own.idle_for - places))}


def site_in(resources: Iterable[str]) -> str:
    """Return the site that is among the resources of a worker; empty if there is none."""
    sites = sorted(own for own in resources if own.startswith(SITE))
    return sites[0].removeprefix(SITE) if sites else ""


def present_workers(client: Client) -> dict[str, Presence]:
    """Return the workers that the scheduler has now, by address.

    Spares that may take a place that is free have it from then on.

    ``Client.scheduler_info`` will not do: every two seconds the client asks for itself, for an
    answer without workers, and that may take the place of ours before it is returned.

    Raises:
        SchedulerLostError: the scheduler does not answer.
    """
    found = on_scheduler(client, _look, patience=RESTART_SECONDS)
    own = {look.name: address for address, look in found.items() if MEMBER in look.resources}
    spares = {look.place: (look.name, address) for address, look in found.items() if look.place}
    return {address: _presence(address, look, own, spares) for address, look in found.items()}


def _presence(
    address: str, look: "_Look", own: Mapping[str, str], spares: Mapping[str, tuple[str, str]]
) -> Presence:
    """Return a worker as it was seen.

    Args:
        address: of the worker.
        look: what was seen of it.
        own: addresses of all followers, by name.
        spares: name and address of the spare that has a place, by the name of the place.
    """
    size = int(look.resources.get(MEMBERS, 1))
    names = followers_of(look.name, size)
    taken = {name: spares[name] for name in names if name in spares}
    followers = {
        name: taken[name][1] if name in taken else own[name]
        for name in names
        if name in taken or name in own
    }
    return Presence(
        look.name,
        address,
        frozenset(look.resources),
        look.silent_seconds,
        look.executing,
        size,
        followers,
        spares={name: spare for name, (spare, _) in taken.items()},
        place=look.place,
        idle_for=look.idle_for,
        is_leaving=look.is_leaving,
    )


class _Look(NamedTuple):
    """What the scheduler knows of a worker."""

    name: str
    resources: dict[str, float]
    silent_seconds: float
    executing: dict[str, float]
    place: str
    idle_for: frozenset[str]
    is_leaving: bool


def _look(patience: float, dask_scheduler: Scheduler) -> dict[str, _Look]:
    take_places(dask_scheduler, patience)
    now = time()
    return {
        ws.address: _Look(
            str(ws.name),
            dict(ws.resources),
            now - ws.last_seen,
            {str(task.key): float(seconds) for task, seconds in ws.executing.items()},
            own.place,
            own.idle_for if own.is_idle else frozenset(),
            own.is_leaving,
        )
        for ws in dask_scheduler.workers.values()
        for own in [Declared.of(ws)]
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
    on_scheduler(client, dismissed, address=address)


async def dismissed(address: str, dask_scheduler: Scheduler) -> None:
    """Take a worker out of the cluster, in the scheduler's process; see `dismiss`."""
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

    Tasks are pinned to their workers, so Dask would wait for the lost ones for ever. What one that
    was lost before had made may have been on another one until now.

    Args:
        client: of the cluster.
        lost: addresses of workers that count as lost, beside those that are not there.
        address: of the worker that takes their place.

    Raises:
        SchedulerLostError: the scheduler does not answer.
    """
    on_scheduler(client, _move_what_is_needed, lost=set(lost), address=address)


def _move_what_is_needed(lost: set[str], address: str, dask_scheduler: Scheduler) -> None:
    if address not in dask_scheduler.workers:  # it is the next one to be lost
        return
    tasks, there = dask_scheduler.tasks.values(), dask_scheduler.workers.keys() - lost
    pinned_to = ((task, task.worker_restrictions) for task in tasks)
    lost_tasks = {task for task, own in pinned_to if own and there.isdisjoint(own)}
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
