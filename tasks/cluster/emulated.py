"""A Dask cluster of emulated devices: many workers in a few processes, as they only wait."""

import json
import logging
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import dask
from distributed import Client, SpecCluster

from digen_core.control.protocol import Device
from tasks.cluster.cluster import QUIET, as_environment
from tasks.cluster.listening import TASK_WORKER, own_scheduler, own_tls_settings
from tasks.emulation import DEVICE, REWARD_SERVERS

DEVICES_PER_PROCESS = 16
THREADS_BESIDE = 8  # of a device: what does not hold it, such as a push
REWARD_THREADS = 256  # fragments that wait for the reward servers
START_SECONDS = 120.0


@contextmanager
def emulated_cluster(devices: Sequence[Device]) -> Iterator[str]:
    """Yield the address of a scheduler whose workers are these devices and the reward servers."""
    logging.getLogger("distributed").setLevel(logging.ERROR)
    scheduler, tls = own_scheduler(tls=True), own_tls_settings(tls=True)
    specs = _specs_of(devices)
    with (
        dask.config.set(QUIET | tls),
        SpecCluster(scheduler=scheduler, workers={}, silence_logs=logging.ERROR) as cluster,
        ExitStack() as hosts,
    ):
        for spec in specs:
            hosts.enter_context(_host(cluster.scheduler_address, spec, QUIET | tls))
        with Client(cluster.scheduler_address, set_as_default=False) as client:
            client.wait_for_workers(sum(map(len, specs)), timeout=START_SECONDS)
        yield cluster.scheduler_address


def _specs_of(devices: Sequence[Device]) -> list[dict[str, Any]]:
    """Describe the workers of each process. The reward servers are in one with devices."""
    num_hosts = -(-len(devices) // DEVICES_PER_PROCESS)
    specs = [
        {d.name: _worker(d.name, 1 + THREADS_BESIDE, {DEVICE: 1}) for d in devices[i::num_hosts]}
        for i in range(num_hosts)
    ]
    specs[0][REWARD_SERVERS] = _worker(REWARD_SERVERS, REWARD_THREADS, {})
    return specs


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
def _host(address: str, spec: dict[str, Any], settings: dict[str, Any]) -> Iterator[None]:
    """Run the workers of a spec in one process while the body runs."""
    command = [sys.executable, "-m", "distributed.cli.dask_spec", address]
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
