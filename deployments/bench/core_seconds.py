"""Core-seconds of an iteration by process: what the work takes, and what is spent beside it.

A run's own processes on this machine: workers, this process (the flow, Dask's scheduler and client,
MLflow's sender, each by its threads) and Prefect's server. What is left of the cores' time they
were idle, or did something else.
"""

import os
import threading
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from time import process_time, time
from typing import Final

import psutil
from distributed import Client
from prefect import flow
from rich.console import Console
from rich.table import Table

from deployments.processes import PREFECT_MODULE
from digen_core.config.run import RunConfig
from flows.launch import open_run
from flows.prepare import prepare
from flows.runtime.subflows import on_cluster
from tasks.worker.span import body_cpu_seconds

BODIES: Final = "task bodies"
WORKERS: Final = "workers, beside them"
DASK: Final = "Dask's scheduler and client"
FLOW: Final = "flow"
MLFLOW: Final = "MLflow"
PREFECT: Final = "Prefect's server"
OTHERS: Final = "other processes of the run"
IDLE: Final = "idle, or not of the run"

WARM_UP: Final = 3
"""Iterations that are run first: memory and caches settle, and costs are learned."""

_THREADS: Final = {"IO loop": DASK, "Dask-": DASK, "AsyncProcess": DASK, "mlflow": MLFLOW}
"""How the names of this process's threads begin -> the part that they are of."""


@dataclass(frozen=True, slots=True)
class CoreSeconds:
    """What some iterations of a run took."""

    seconds: float  # of wall clock, an iteration
    parts: Mapping[str, float]  # core-seconds of an iteration; with IDLE all of the machine's

    def share(self, name: str) -> float:
        """Return the share of a part in all core-seconds."""
        return self.parts[name] / sum(self.parts.values())


@flow(name="bench-core-seconds", validate_parameters=False)
def bench_core_seconds(config: RunConfig) -> CoreSeconds:
    """Run a config, and account for all iterations but the first ones, which warm up."""
    last = config.num_iterations - 1
    with open_run(config) as run, on_cluster(run, prepare) as conductor:
        for index in range(last + 1):
            if index == WARM_UP:
                started, before = time(), parts_of(run.client)
            conductor.complete(index, last=last)
        after, ended = parts_of(run.client), time()
    measured = config.num_iterations - WARM_UP
    return per_iteration(before, after, ended - started, measured, os.cpu_count() or 1)


def per_iteration(
    before: Mapping[str, float],
    after: Mapping[str, float],
    seconds: float,
    iterations: int,
    num_cores: int,
) -> CoreSeconds:
    """Return the differences of two readings, with what is left of the cores' time.

    Args:
        before: core-seconds of each part until the first moment.
        after: until the second one.
        seconds: between them.
        iterations: that were run.
        num_cores: of the machine.
    """
    # A process that has ended takes its seconds with it.
    used = {n: max(0.0, after[n] - before.get(n, 0.0)) / iterations for n in after}
    idle = num_cores * seconds / iterations - sum(used.values())
    return CoreSeconds(seconds / iterations, {**used, IDLE: max(0.0, idle)})


def parts_of(client: Client) -> dict[str, float]:
    """Return the core-seconds of each part so far; processes that have ended are left out."""
    parts: dict[str, float] = defaultdict(float)
    parts.update(dict.fromkeys((BODIES, WORKERS, FLOW, DASK, MLFLOW, PREFECT), 0.0))
    workers = client.run(_of_this_worker)
    for _, total, bodies in workers.values():
        parts[BODIES] += bodies
        parts[WORKERS] += total - bodies
    pids = {pid for pid, _, _ in workers.values()}
    for child in psutil.Process().children(recursive=True):
        try:
            command, times = " ".join(child.cmdline()), child.cpu_times()
        except psutil.NoSuchProcess:
            continue
        if child.pid not in pids:
            name = PREFECT if PREFECT_MODULE in command else OTHERS
            parts[name] += times.user + times.system
    for name, seconds in _of_this_process().items():
        parts[name] += seconds
    return dict(parts)


def _of_this_worker() -> tuple[int, float, float]:
    """Return a worker's process, its core-seconds, and those of its task bodies."""
    return os.getpid(), process_time(), body_cpu_seconds()


def _of_this_process() -> dict[str, float]:
    """Return the core-seconds of this process's threads by part."""
    names = {thread.native_id: thread.name for thread in threading.enumerate()}
    parts: dict[str, float] = defaultdict(float)
    total = process_time()
    for thread in psutil.Process().threads():
        name = names.get(thread.id, "")
        part = next((part for start, part in _THREADS.items() if name.startswith(start)), FLOW)
        if part != FLOW:
            parts[part] += thread.user_time + thread.system_time
    parts[FLOW] = total - sum(parts.values())  # with threads that have ended
    return parts


def print_core_seconds(measured: CoreSeconds, layout: str, serial: float) -> None:
    """Print where the cores' time went.

    Args:
        measured: of a run.
        layout: it had.
        serial: seconds of the same iteration in the serial loop, on one core.
    """
    table = Table(title=f"core-seconds of an iteration, layout {layout}")
    table.add_column("who")
    table.add_column("core-seconds", justify="right")
    table.add_column("share", justify="right")
    for name, seconds in measured.parts.items():
        table.add_row(name, f"{seconds:.3f}", f"{measured.share(name):.1%}")
    console = Console()
    console.print(table)
    console.print(
        f"{measured.seconds:.2f} s an iteration, {serial / measured.seconds:.2f}x the serial loop; "
        f"task bodies take {measured.parts[BODIES] / serial:.2f}x its time"
    )
