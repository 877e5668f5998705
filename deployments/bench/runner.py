"""The cost of one task: bare Dask, the lean runner and Prefect's stock Dask runner.

All three run the same trivial tasks on the same Dask worker and, save bare Dask, against the same
Prefect server; scheduler, worker and server have processes of their own, so that CPU seconds can be
told apart. The rounds are interleaved, as other load on the machine drifts.
"""

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from os import environ, getpid
from typing import Any
from unittest.mock import patch

import psutil
from distributed import Client, SubprocessCluster, wait
from prefect import flow, task
from prefect.context import FlowRunContext
from prefect.events.worker import EventsWorker
from prefect.server.api.server import SubprocessASGIServer
from prefect.task_runners import TaskRunner
from prefect.testing.utilities import prefect_test_harness
from prefect_dask import DaskTaskRunner
from rich.console import Console
from rich.table import Table

from tasks.runner.completions import Completions
from tasks.runner.task_runner import LeanDaskTaskRunner, shared_client

CPU_MS_LIMIT = 15.0
"""The lean runner's client and worker together may spend this much CPU on one task."""
RATIO_LIMIT = 6.0
"""The stock runner's client and worker together must spend this many times as much."""

_SETTLE_SECONDS = 30.0


@dataclass(frozen=True)
class TaskCost:
    """Milliseconds per task."""

    client_cpu_ms: float
    worker_cpu_ms: float
    scheduler_cpu_ms: float
    server_cpu_ms: float
    burst_wall_ms: float
    chain_wall_ms: float

    @property
    def cpu_ms(self) -> float:
        """CPU of client and worker."""
        return self.client_cpu_ms + self.worker_cpu_ms


@dataclass(frozen=True)
class RunnerBench:
    """The costs of every way to run a task, one per round."""

    num_tasks: int
    bare: list[TaskCost]
    lean: list[TaskCost]
    stock: list[TaskCost]

    @property
    def lean_cpu_ms(self) -> float:
        """Median CPU of client and worker per task of the lean runner."""
        return median(self.lean).cpu_ms

    @property
    def ratio_to_stock(self) -> float:
        """Median over the rounds of stock CPU / lean CPU."""
        pairs = zip(self.stock, self.lean, strict=True)
        return statistics.median(stock.cpu_ms / lean.cpu_ms for stock, lean in pairs)

    @property
    def holds(self) -> bool:
        """Say whether both limits hold."""
        return self.lean_cpu_ms <= CPU_MS_LIMIT and self.ratio_to_stock >= RATIO_LIMIT


def median(costs: list[TaskCost]) -> TaskCost:
    """Return the median of each figure on its own."""
    names = [f.name for f in fields(TaskCost)]
    return TaskCost(*(statistics.median(getattr(cost, name) for cost in costs) for name in names))


def bench_runner(num_tasks: int = 60, rounds: int = 3) -> RunnerBench:
    """Measure the three ways in interleaved rounds, after one warm-up each.

    A round submits ``num_tasks`` independent tasks and then a chain of half as many.
    """
    lean: list[TaskCost] = []
    stock: list[TaskCost] = []
    bare: list[TaskCost] = []
    with (
        _quiet_workers(),
        prefect_test_harness(server_startup_timeout=120),
        SubprocessCluster(
            n_workers=1,
            threads_per_worker=1,
            worker_class="distributed.Worker",
            dashboard_address=None,  # type: ignore[arg-type]
        ) as cluster,
        shared_client(cluster.scheduler_address) as client,
    ):
        address = cluster.scheduler_address
        runners: list[tuple[list[TaskCost], TaskRunner[Any]]] = [
            (lean, LeanDaskTaskRunner(address)),
            (stock, DaskTaskRunner(address=address)),
        ]
        for number in range(rounds + 1):  # the first warms up
            size = num_tasks if number else 4
            bare.append(_measure(client, _Bare(client), size))
            for costs, runner in runners:
                costs.append(_run_flow(client, runner, size))
    return RunnerBench(num_tasks, bare[1:], lean[1:], stock[1:])


def print_bench(bench: RunnerBench, console: Console | None = None) -> None:
    """Print the medians as a table and say whether the limits hold."""
    console = console or Console()
    table = Table(title=f"milliseconds per task, medians of {len(bench.lean)} rounds")
    table.add_column("way")
    columns = ("client", "worker", "sched.", "server", "burst", "chain")
    for name in ("CPU", *columns, "vs stock"):
        table.add_column(name, justify="right")
    stock = median(bench.stock)
    ways = {"bare Dask": bench.bare, "lean": bench.lean, "stock": bench.stock}
    for way, costs in ways.items():
        cost = median(costs)
        figures = (cost.cpu_ms, *(getattr(cost, f.name) for f in fields(TaskCost)))
        ratio = f"1/{stock.cpu_ms / cost.cpu_ms:.1f}"
        table.add_row(way, *(f"{figure:.1f}" for figure in figures), ratio)
    console.print(table)
    console.print(
        "CPU: of client and worker; burst and chain: wall time, "
        f"{bench.num_tasks} tasks at once and {bench.num_tasks // 2} in a row"
    )
    console.print(
        f"lean runner: {bench.lean_cpu_ms:.1f} ms of CPU per task (limit {CPU_MS_LIMIT:.0f}), "
        f"{bench.ratio_to_stock:.1f} times below stock (limit {RATIO_LIMIT:.0f}): "
        + ("both hold" if bench.holds else "NOT met")
    )


@contextmanager
def _quiet_workers() -> Iterator[None]:
    # The stock runner logs every task to the terminal; without that it is a little cheaper.
    with patch.dict(environ, PREFECT_LOGGING_LEVEL="WARNING"):
        yield


@task
def increment(number: int) -> int:
    """Do nothing worth a task."""
    return _increment(number)


def _increment(number: int) -> int:
    return number + 1


@flow
def bench_flow(num_tasks: int) -> None:
    """Measure the task runner this flow runs on."""
    _measure_here(num_tasks)


class _Bare:
    def __init__(self, client: Client):
        self._client = client

    def submit(self, number: Any) -> Any:
        return self._client.submit(_increment, number, pure=False)

    def wait(self, futures: list[Any]) -> None:
        with self._client.as_current():
            wait(futures)


class _Stock:
    def submit(self, number: Any) -> Any:
        return increment.submit(number)

    def wait(self, futures: list[Any]) -> None:
        for future in futures:
            future.wait()


class _Lean(_Stock):
    def __init__(self, completions: Completions):
        self._completions = completions

    def wait(self, futures: list[Any]) -> None:
        for _ in futures:
            self._completions.next(timeout=300)


_here: dict[str, Any] = {}
"""What `_run_flow` and `_measure_here` tell each other around a flow run in this process."""


def _run_flow(client: Client, runner: TaskRunner[Any], num_tasks: int) -> TaskCost:
    _here["client"] = client
    bench_flow.with_options(task_runner=runner)(num_tasks)
    cost: TaskCost = _here.pop("cost")
    return cost


def _measure_here(num_tasks: int) -> None:
    context = FlowRunContext.get()
    if isinstance(context and context.task_runner, LeanDaskTaskRunner):
        with Completions() as completions:
            _here["cost"] = _measure(_here["client"], _Lean(completions), num_tasks)
    else:
        _here["cost"] = _measure(_here["client"], _Stock(), num_tasks)


def _measure(client: Client, way: Any, num_tasks: int) -> TaskCost:
    way.wait([way.submit(0)])  # builds what is built once per flow run
    processes = _processes(client)
    length = num_tasks // 2
    with _cpu_ms(client, processes) as spent:
        burst = _wall_ms(lambda: way.wait([way.submit(number) for number in range(num_tasks)]))
        chain = _wall_ms(lambda: way.wait(_chain(way, length)))
    per_task = {name: milliseconds / (num_tasks + length) for name, milliseconds in spent.items()}
    return TaskCost(**per_task, burst_wall_ms=burst / num_tasks, chain_wall_ms=chain / length)


def _chain(way: Any, length: int) -> list[Any]:
    futures = [way.submit(0)]
    while len(futures) < length:
        futures.append(way.submit(futures[-1]))
    return futures


def _wall_ms(body: Callable[[], None]) -> float:
    start = time.perf_counter()
    body()
    return (time.perf_counter() - start) * 1e3


def _processes(client: Client) -> dict[str, psutil.Process]:
    server = SubprocessASGIServer._instances[None].server_process
    assert server is not None
    (worker,) = client.run(getpid).values()
    return {
        "client_cpu_ms": psutil.Process(),
        "worker_cpu_ms": psutil.Process(worker),
        "scheduler_cpu_ms": psutil.Process(client.run_on_scheduler(getpid)),
        "server_cpu_ms": psutil.Process(server.pid),
    }


@contextmanager
def _cpu_ms(client: Client, processes: dict[str, psutil.Process]) -> Iterator[dict[str, float]]:
    """Yield a dict that holds what each process spent inside the block, once it is left."""
    _settle(client, processes["server_cpu_ms"])
    before = {name: _cpu_seconds(process) for name, process in processes.items()}
    spent: dict[str, float] = {}
    yield spent
    _flush(client)
    for name in ("client_cpu_ms", "worker_cpu_ms", "scheduler_cpu_ms"):
        spent[name] = (_cpu_seconds(processes[name]) - before[name]) * 1e3
    _settle(client, processes["server_cpu_ms"])
    spent["server_cpu_ms"] = (
        _cpu_seconds(processes["server_cpu_ms"]) - before["server_cpu_ms"]
    ) * 1e3


def _settle(client: Client, server: psutil.Process) -> None:
    """Wait until nobody works on what was reported so far; the server lags behind."""
    _flush(client)
    deadline = time.monotonic() + _SETTLE_SECONDS
    spent = _cpu_seconds(server)
    while time.monotonic() < deadline:
        time.sleep(1.0)
        previous, spent = spent, _cpu_seconds(server)
        if spent - previous < 0.05:
            return


def _flush(client: Client) -> None:
    client.run(_send_queued_events)
    _send_queued_events()


def _send_queued_events() -> None:
    for service in list(EventsWorker._instances.values()):  # type: ignore[misc]  # every kind of queue service
        if isinstance(service, EventsWorker):
            service.wait_until_empty()


def _cpu_seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system
