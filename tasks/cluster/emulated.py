"""A Dask cluster of emulated devices: many workers in a few processes, as they only wait.

The members of a gang are a process each, as in a real run: a process leads one gang, or follows.
"""

import json
import logging
import os
import subprocess
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import dask
from distributed import Client, SpecCluster

from digen_core import PYTHON
from digen_core.control.protocol import Device
from tasks.cluster.cluster import QUIET, as_environment, settings_of_workers, worker_process
from tasks.cluster.listening import TASK_WORKER, own_scheduler, own_tls_settings
from tasks.cluster.presence import SITE
from tasks.cluster.spares import MEMBER, MEMBERS
from tasks.cluster.start_method import METHOD, import_ahead, start_method

REWARD_SERVERS = "reward-servers"  # name of the worker on which all fragments are scored
DEVICE = "device"  # resource of which a worker has one; such work holds it
DEVICES_PER_PROCESS = 16
THREADS_BESIDE = 8  # of a device: what does not hold it, such as a push
REWARD_THREADS = 256  # fragments that wait for the reward servers
START_SECONDS = 120.0


@contextmanager
def emulated_cluster(devices: Sequence[Device], hosts: Mapping[str, int]) -> Iterator[str]:
    """Yield the address of a scheduler whose workers are these devices and the reward servers.

    Args:
        devices: to emulate.
        hosts: that the gangs of each kind are on.
    """
    logging.getLogger("distributed").setLevel(logging.ERROR)
    scheduler, tls = own_scheduler(tls=True), own_tls_settings(tls=True)
    members = _members_of([device for device in devices if device.size > 1], hosts)
    specs = _specs_of([device for device in devices if device.size == 1])
    settings: dict[str, Any] = QUIET | tls
    if members:
        import_ahead(num_threads=1)
        settings |= settings_of_workers(num_threads=1) | {METHOD: start_method()}
    with (
        dask.config.set(settings),
        SpecCluster(scheduler=scheduler, workers=members, silence_logs=logging.ERROR) as cluster,
        ExitStack() as processes,
    ):
        for spec in specs:
            processes.enter_context(_process(cluster.scheduler_address, spec, QUIET | tls))
        with Client(cluster.scheduler_address, set_as_default=False) as client:
            client.wait_for_workers(len(members) + sum(map(len, specs)), timeout=START_SECONDS)
        yield cluster.scheduler_address


def _members_of(gangs: Sequence[Device], hosts: Mapping[str, int]) -> dict[str, Any]:
    """Describe a process for each member of the gangs; those of a host have an address."""
    total, dealt = Counter(device.kind for device in gangs), defaultdict[str, int](int)
    members: dict[str, Any] = {}
    for device in gangs:
        place = dealt[device.kind] * hosts[device.kind] // total[device.kind]
        dealt[device.kind] += 1
        # Of so many processes some end after the scheduler, and would say that it is gone.
        own: dict[str, Any] = {
            "host": f"127.0.0.{1 + place}",
            "preload": ["tasks.emulation"],
            "log_level": logging.CRITICAL,
        }
        leading = {**_resources_of(device), MEMBERS: device.size}
        members[device.name] = worker_process(leading, num_tasks=1 + THREADS_BESIDE, **own)
        members |= {name: worker_process({MEMBER: 1}, **own) for name in device.followers}
    return members


def _specs_of(devices: Sequence[Device]) -> list[dict[str, Any]]:
    """Describe the workers of each process. The reward servers are in one with devices."""
    num_hosts = max(-(-len(devices) // DEVICES_PER_PROCESS), 1)
    specs = [
        {
            d.name: _worker(d.name, 1 + THREADS_BESIDE, _resources_of(d))
            for d in devices[i::num_hosts]
        }
        for i in range(num_hosts)
    ]
    specs[0][REWARD_SERVERS] = _worker(REWARD_SERVERS, REWARD_THREADS, {})
    return specs


def _resources_of(device: Device) -> dict[str, int]:
    """Return what the worker of a device declares, with its site."""
    return {DEVICE: 1, **({SITE + device.site: 1} if device.site else {})}


def _worker(name: str, num_threads: int, resources: dict[str, int]) -> dict[str, Any]:
    return {
        "cls": TASK_WORKER,
        "opts": {
            "name": name,
            "host": "127.0.0.1",
            "nthreads": num_threads,
            "resources": resources,
            "memory_limit": 0,
            "preload": ["tasks.emulation"],
        },
    }


@contextmanager
def _process(address: str, spec: dict[str, Any], settings: dict[str, Any]) -> Iterator[None]:
    """Run the workers of a spec in one process while the body runs."""
    command = [*PYTHON, "-m", "distributed.cli.dask_spec", address]
    process = subprocess.Popen(
        [*command, "--spec", json.dumps(spec)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, **as_environment(settings)},
        start_new_session=True,  # Ctrl-C reaches the run first, which then ends its workers
    )
    try:
        yield
    finally:
        process.terminate()
        process.wait()
