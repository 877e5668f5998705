"""The Dask cluster of a run: worker processes with roles, on this machine or a running one."""

import logging
import os
from asyncio import CancelledError
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from time import monotonic, sleep
from typing import Any

import dask
from distributed import Client, Nanny, SpecCluster
from distributed.core import Status

from digen_core.config.schedule import ClusterConfig
from digen_core.control.layout import Layout
from digen_core.control.protocol import Device, Role
from digen_core.errors import UserError
from digen_core.inputs.text import number_of
from tasks.cluster import garbage
from tasks.cluster.calls import LOOK_SECONDS
from tasks.cluster.gpus import deal_gpus, visible_gpus
from tasks.cluster.leaving import lock_of_run
from tasks.cluster.listening import TaskWorker, own_scheduler, own_tls_settings, require_entry
from tasks.cluster.presence import (
    ROLES,
    SITE,
    Presence,
    devices_among,
    places_of_nobody,
    present_workers,
)
from tasks.cluster.spares import MEMBER, MEMBERS, RESTART_SECONDS, matched
from tasks.cluster.start_method import (
    COPIED,
    METHOD,
    environment_before_start,
    import_ahead,
    script_left_out,
    start_method,
)

# What Dask would do all the time in each process: look whether its event loop answers (50 times a
# second, which cost a small cluster 7% of a core), sample the stacks of all threads and measure the
# process, which costs workers a few percent. And if the garbage collector frees a threading.local
# just when stacks are sampled, CPython 3.11 waits for itself for ever with the interpreter lock in
# hand (gh-106883): a worker that does nothing, and a run that never ends.
QUIET = {
    "distributed.admin.tick.interval": "1s",
    "distributed.worker.profile.enabled": False,
    "distributed.admin.system-monitor.interval": "10s",
    # What the scheduler, workers and clients remember for developers: the last messages of each
    # connection, with all tasks in them, take hundreds of MB if there are a thousand.
    "distributed.admin.low-level-log-length": 10,
    "distributed.diagnostics.computations.max-history": 1,
}
# A cluster that a run starts is there until that ends, whatever the user has set for others.
LASTING = {
    # A worker that its nanny starts again imports torch: it is not given up meanwhile.
    "distributed.deploy.lost-worker-timeout": "10m",
    "distributed.scheduler.idle-timeout": None,
    "distributed.worker.lifetime.duration": None,
}
PRELOAD = "tasks.worker.engine"  # imports what tasks need, before the first of them


def local_devices(config: ClusterConfig, *, colocated: bool = False) -> list[Device]:
    """Return the workers that a run starts on this machine.

    Args:
        config: of the cluster.
        colocated: all have both roles, as where none only trains.
    """
    counts: dict[Role, int] = {"rollout": config.rollout_workers, "trainer": config.trainer_workers}
    sizes: dict[Role, int] = {"rollout": config.rollout_gang, "trainer": config.trainer_gang}
    if colocated or not config.trainer_workers:
        both, size = frozenset(ROLES), max(sizes.values())
        return [Device(f"worker-{i}", both, size=size) for i in range(sum(counts.values()))]
    return [
        Device(f"{role}-{index}", frozenset({role}), size=sizes[role])
        for role, count in counts.items()
        for index in range(count)
    ]


@contextmanager
def run_cluster(
    config: ClusterConfig,
    devices: list[Device],
    on_started: Callable[[int, int], None] = lambda done, total: None,
) -> Iterator[str]:
    """Yield the address of a scheduler: the configured one, or a new one with these workers.

    Args:
        config: of the cluster.
        devices: to start if none is configured.
        on_started: is called with how many workers have started, and of how many.

    Raises:
        UserError: the configured one does not let this process in.
    """
    logging.getLogger("distributed").setLevel(logging.ERROR)
    for part in ("client", "scheduler"):
        logging.getLogger(f"distributed.{part}").addFilter(is_news)
    if config.address is not None:
        require_entry(config.address, "client")
        yield config.address
        return
    pools = {f"{pool}-{i}": pool for pool, n in config.reward_workers.items() for i in range(n)}
    workers, gpus = dict[str, dict[str, Any]](), deal_gpus(devices, visible_gpus(), [*pools])
    for device in devices:
        leading: dict[str, int] = dict.fromkeys(device.roles, 1)
        if device.size > 1:
            leading[MEMBERS] = device.size
        if device.site:
            leading[SITE + device.site] = 1
        workers[device.name] = worker_process(leading, gpus.get(device.name))
        workers |= {name: worker_process({MEMBER: 1}, gpus.get(name)) for name in device.followers}
    for name, pool in pools.items():
        workers[name] = worker_process({pool: 1}, gpus.get(name))
    nanny = counted_nanny(len(workers), on_started)
    workers = {name: {**worker, "cls": nanny} for name, worker in workers.items()}
    scheduler = own_scheduler(config.tls)
    settings = settings_of_workers(config.threads_per_worker) | own_tls_settings(config.tls)
    if workers:
        import_ahead(config.threads_per_worker)
    with (
        dask.config.set(settings | {METHOD: start_method()} | LASTING),
        script_left_out(),
        SpecCluster(scheduler=scheduler, workers=workers, silence_logs=logging.ERROR) as cluster,
    ):
        yield cluster.scheduler_address


def is_news(record: logging.LogRecord) -> bool:
    """Say whether a line of Dask's log is none of what the run tells: that somebody is not there.

    That is what a client cancels when it reconnects in vain, of which Dask shows the traceback, and
    a worker that is asked something with all others.
    """
    error = record.exc_info[1] if record.exc_info else None
    is_reconnect = isinstance(error, CancelledError)
    return not (is_reconnect or record.getMessage().startswith("broadcast to "))


@contextmanager
def exclusive(client: Client, on_wait: Callable[[], None]) -> Iterator[None]:
    """Run the body when no other run has the cluster: a worker holds the model of one run.

    Args:
        client: of the run. If it is lost, the cluster is free again half a minute later.
        on_wait: is called if another run has to end first.
    """
    lock = lock_of_run(client)
    if not lock.acquire(timeout=1):
        on_wait()
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def settings_of_workers(num_threads: int) -> dict[str, Any]:
    """Return the Dask settings of a process that starts workers.

    Args:
        num_threads: CPU threads of each worker's engine.
    """
    return {
        **QUIET,
        # This also drops Dask's MALLOC_TRIM_THRESHOLD_, which gives each freed tensor back to the
        # system at once: its page faults made a denoising step 1.7 times slower on the CPU.
        "distributed.nanny.pre-spawn-environ": environment_before_start(num_threads),
    }


def as_environment(settings: Mapping[str, object]) -> dict[str, str]:
    """Return Dask settings as environment variables."""
    return {
        "DASK_" + key.replace(".", "__").replace("-", "_").upper(): str(value)
        for key, value in settings.items()
    }


def counted_nanny(total: int, on_started: Callable[[int, int], None]) -> type[Nanny]:
    """Return a class whose instances, ``total`` of them, say when their workers have started.

    A worker that is starting as the cluster closes is killed, where Dask would wait until it is up:
    a batch system that ends a job ends the workers, too, and nannies begin others at once.
    """
    started = count(1)

    class CountedNanny(Nanny):
        async def start_unsafe(self) -> Nanny:
            own: Nanny = await super().start_unsafe()  # type: ignore[no-untyped-call]
            if (done := next(started)) <= total:  # later ones take the place of lost workers
                on_started(done, total)
            return own

        async def kill(self, timeout: float = 5, reason: str = "nanny-kill") -> None:
            own = self.process
            if own is not None and own.process is not None and own.status == Status.starting:
                await own.process.kill()
            await super().kill(timeout, reason)

    return CountedNanny


def worker_process(
    resources: Mapping[str, int],
    gpu: str | None = None,
    *,
    host: str = "127.0.0.1",
    num_tasks: int = 1,
    preload: Sequence[str] = (garbage.PRELOAD, PRELOAD, "tasks.worker.own"),
    log_level: int = logging.ERROR,
) -> dict[str, Any]:
    """Describe a worker process of this machine, for a SpecCluster.

    Args:
        resources: that it declares.
        gpu: that it sees alone; None: what this process sees.
        host: loopback address on which it listens.
        num_tasks: that it runs at the same time.
        preload: modules that it imports before the first of them.
        log_level: of what Dask says there.
    """
    return {
        "cls": Nanny,
        "options": {
            "worker_class": TaskWorker,
            "host": host,
            "nthreads": num_tasks,
            "resources": dict(resources),
            "memory_limit": 0,
            "dashboard_address": None,
            "silence_logs": log_level,
            # As they are now: which Prefect server it uses. A copy would have the fork server's.
            "env": {**os.environ, **({"CUDA_VISIBLE_DEVICES": gpu} if gpu else {})},
            "preload": [*preload, *([COPIED] if start_method() == "forkserver" else [])],
        },
    }


def devices_of(client: Client, *, colocated: bool = False) -> list[Device]:
    """Return the workers of a cluster that declare a role; their kinds are their processors.

    Raises:
        UserError: a role that a run needs is declared by no worker, or, for a colocated layout,
            not by every one.
    """
    workers = present_workers(client).values()
    declaring = [worker for worker in workers if worker.roles]
    devices = devices_among(client, [worker for worker in declaring if not worker.lacks])
    for role in ROLES:
        if not any(role in device.roles for device in devices):
            for leader in declaring:
                _require_whole(leader)
            raise UserError(
                f"no worker of the cluster has the role {role!r} (of "
                f"{number_of(len(workers), 'worker')}); start one with digen worker --role {role}"
            )
    if colocated and (single := [device.name for device in devices if len(device.roles) == 1]):
        raise UserError(
            f"workers {', '.join(single)} have one role only, but a colocated layout needs both on "
            "every worker; start them with digen worker --role both"
        )
    return devices


def await_spares(client: Client, on_wait: Callable[[str], None]) -> None:
    """Wait for spares, where nobody has a role but a gang of which they are to take places.

    Args:
        client: of the cluster.
        on_wait: is told, once, what is waited for, and of spares for gangs that are not there.
    """
    workers = list(present_workers(client).values())
    for spare, unknown in places_of_nobody(workers).items():
        on_wait(
            f"the spare {spare} is for {', '.join(unknown)}: no gang or follower that is there is "
            "called so"
        )
    is_told, deadline = False, monotonic() + RESTART_SECONDS + LOOK_SECONDS
    while monotonic() < deadline:
        whole = {role for worker in workers if not worker.lacks for role in worker.roles}
        waiting = [worker for worker in workers if worker.roles - whole and worker.lacks]
        lacks = [name for leader in waiting for name in leader.lacks]
        if not lacks or not any(_may_be_whole(leader, workers) for leader in waiting):
            return
        if not is_told:
            on_wait(f"waiting for {', '.join(lacks)}, in whose place there are spares")
            is_told = True
        sleep(LOOK_SECONDS)
        workers = list(present_workers(client).values())


def _may_be_whole(leader: Presence, workers: Sequence[Presence]) -> bool:
    """Say whether there is an idle spare for each place of a gang that is free."""
    idle = {worker.name: worker.idle_for for worker in workers}
    return len(matched(leader.lacks, idle)) == len(leader.lacks)


def _require_whole(leader: Presence) -> None:
    if lacks := leader.lacks:
        raise UserError(
            f"the gang {leader.name} has {leader.size} members, but {', '.join(lacks)} "
            f"{'is' if len(lacks) == 1 else 'are'} not there; start all of them with digen worker "
            f"--name {leader.name} --members {leader.size}, or on several hosts, each with some of "
            f"their --ranks, or a spare with --spare-for {' '.join(lacks)}"
        )


def in_one_role(devices: list[Device], config: ClusterConfig, layout: Layout) -> list[Device]:
    """Give each device that may do both one role, for layouts in which devices have one.

    The shares of the roles are those of the config's counts, with at least one device in each.

    Args:
        devices: of a cluster in which both roles are there; a single one keeps both.
        config: of the run.
        layout: of the run.

    Raises:
        UserError: there is one device, and in the layout none may train that generates.
    """
    if len(devices) == 1:
        if layout.rollouts_train:
            return devices
        raise UserError(
            f"the cluster has one worker, {devices[0].name}, but layout {layout.name} needs one for"
            " each role; start another one, or set schedule.layout to elastic or colocated-strong"
        )
    free = [device for device in devices if device.roles.issuperset(ROLES)]
    if not free:
        return devices
    share = config.rollout_workers / (config.rollout_workers + config.trainer_workers)
    wanted = min(max(round(len(devices) * share), 1), len(devices) - 1)
    fixed = sum(device.roles == {"rollout"} for device in devices)
    generating = {device.name for device in free[: max(wanted - fixed, 0)]}
    return [
        replace(device, roles=frozenset({"rollout" if device.name in generating else "trainer"}))
        if device in free
        else device
        for device in devices
    ]
