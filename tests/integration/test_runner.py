"""The lean runner against Prefect's stock Dask runner: the same flows, the same outcome."""

import asyncio
import contextvars
import os
import signal
import threading
import time
import weakref
from concurrent.futures import CancelledError, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dask
import pytest
from distributed import Client, LocalCluster, get_worker
from prefect import flow, get_client, tags, task, unmapped
from prefect.client.schemas.filters import FlowRunFilter
from prefect.context import FlowRunContext
from prefect.events.worker import EventsWorker
from prefect_dask import DaskTaskRunner

from deployments import bench_runner
from tasks import runner
from tasks.completions import Completions, mark_crashed
from tasks.receipts import attach
from tasks.runner import LeanDaskTaskRunner, shared_client
from tasks.runner_pickle import dump_call, load_call

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("prefect_backend")]

A_LOCK = threading.Lock()


@pytest.fixture(params=[LeanDaskTaskRunner, DaskTaskRunner], ids=["lean", "stock"])
def task_runner(request: pytest.FixtureRequest, dask_cluster: LocalCluster) -> Any:
    return request.param(address=dask_cluster.scheduler_address)


@pytest.fixture
def lean(dask_cluster: LocalCluster) -> LeanDaskTaskRunner:
    return LeanDaskTaskRunner(dask_cluster.scheduler_address)


def run(task_runner: Any, body: Any, *args: Any) -> Any:
    """Run ``body`` as a flow; what cannot be pickled by the stock runner stays out of it."""
    return flow(body, name=body.__name__, task_runner=task_runner)(*args)


def until(check: Any, seconds: float = 60.0) -> Any:
    deadline = time.monotonic() + seconds
    while not (found := check()):
        assert time.monotonic() < deadline, f"never came true: {check}"
        time.sleep(0.02)
    return found


def recorded(flow_run_id: Any, num_task_runs: int) -> dict[Any, Any]:
    """Wait until the server knows the end of that many task runs; it lags behind."""

    def read() -> dict[Any, Any] | None:
        flow_run_filter = FlowRunFilter(id={"any_": [flow_run_id]})
        runs = client.read_task_runs(flow_run_filter=flow_run_filter)
        ended = [r for r in runs if r.state and (r.state.is_final() or r.state.name == "NotReady")]
        return {r.id: r for r in ended} if len(ended) == num_task_runs else None

    with get_client(sync_client=True) as client:
        return until(read)


def flow_run_id() -> Any:
    return FlowRunContext.get().flow_run.id


@dataclass
class Box:
    content: Any


@task
def double(x: int) -> int:
    return 2 * x


@task(task_run_name="add-{x}-to-{y}", tags=["own"])
def add(x: int, y: int) -> int:
    return x + y


@task
def total(nested: dict[str, Any]) -> int:
    return nested["one"] + sum(nested["list"][0]) + sum(nested["tuple"])


@task
def unbox(box: Box) -> Any:
    return box.content


@task
def fail(message: str) -> None:
    raise ValueError(message)


@task
def receive(value: Any) -> Any:
    return value


@task(retries=2)
def flaky(log: Path) -> int:
    with log.open("a") as file:
        file.write("x")
    if (attempts := len(log.read_text())) < 3:
        raise RuntimeError(f"attempt {attempts}")
    return attempts


@task
async def double_later(x: int) -> int:
    await asyncio.sleep(0)
    return 2 * x


@task
def where(_: int = 0) -> str:
    return get_worker().address


@task
def wait_for_file(path: Path) -> None:
    until(path.exists)


@task
def touch(path: Path) -> None:
    path.touch()


@task
def exists(path: Path) -> bool:
    return path.exists()


# The same under both runners


def test_values_names_tags_and_graph_are_recorded(task_runner):
    def body():
        with tags("outer"):
            two = double.submit(1)
        five = add.submit(two, 3)
        sum_ = total.submit({"one": two, "list": [[two, five]], "tuple": (five, 1)})
        return flow_run_id(), [f.task_run_id for f in (two, five, sum_)], sum_.result()

    run_id, (two, five, sum_), value = run(task_runner, body)
    runs = recorded(run_id, 3)
    inputs = {i: {k: {r.id for r in v} for k, v in runs[i].task_inputs.items() if v} for i in runs}

    assert value == 2 + (2 + 5) + (5 + 1)
    assert {r.state.name for r in runs.values()} == {"Completed"}
    assert runs[two].name.startswith("double-")
    assert runs[five].name == "add-2-to-3"
    assert set(runs[two].tags) == {"outer"}
    assert set(runs[five].tags) == {"own"}
    assert inputs == {two: {}, five: {"x": {two}}, sum_: {"nested": {two, five}}}


def test_failure_reaches_those_who_depend_on_it(task_runner):
    def body():
        failed = fail.submit("boom")
        child = receive.submit(failed)
        grandchild = receive.submit(child)
        states = []
        for future in (failed, child, grandchild):
            future.wait()
            states.append((future.state.type.value, future.state.name, future.state.message))
        return flow_run_id(), failed.task_run_id, child.task_run_id, states

    run_id, failed, child, states = run(task_runner, body)
    upstream = "Upstream task run '{}' did not reach a 'COMPLETED' state."

    assert states == [
        ("FAILED", "Failed", "Task run encountered an exception ValueError: boom"),
        ("PENDING", "NotReady", upstream.format(failed)),
        ("PENDING", "NotReady", upstream.format(child)),
    ]
    names = [r.state.name for r in recorded(run_id, 3).values()]
    assert sorted(names) == ["Failed", "NotReady", "NotReady"]


def test_prefect_retries_count(task_runner, tmp_path):
    def body(log):
        return flow_run_id(), flaky.submit(log).result()

    run_id, attempts = run(task_runner, body, tmp_path / "log")
    (task_run,) = recorded(run_id, 1).values()

    assert attempts == 3
    assert task_run.run_count == 3


def test_wait_for_orders_tasks_and_is_recorded(task_runner, tmp_path):
    def body(path):
        first = touch.submit(path)
        second = exists.submit(path, wait_for=[first])
        return flow_run_id(), first.task_run_id, second.task_run_id, second.result()

    run_id, first, second, found = run(task_runner, body, tmp_path / "there")

    assert found
    inputs = recorded(run_id, 2)[second].task_inputs
    assert {r.id for r in inputs["wait_for"]} == {first}


def test_map_over_values_and_futures(task_runner):
    def body():
        doubled = double.map([1, 2, 3])
        return add.map(doubled, unmapped(10)).result(), receive.submit(doubled).result()

    assert run(task_runner, body) == ([12, 14, 16], [2, 4, 6])


def test_async_tasks(task_runner):
    def body():
        return double_later.submit(double_later.submit(4)).result()

    assert run(task_runner, body) == 16


def test_annotations_place_tasks(task_runner, dask_cluster):
    addresses = [worker.address for worker in dask_cluster.workers.values()]

    def body(addresses):
        futures = []
        for address in [*addresses, *addresses]:
            with dask.annotate(workers=[address], priority=3, retries=1):
                futures.append(where.submit(len(futures)))
        return [future.result() for future in futures]

    assert run(task_runner, body, addresses) == addresses * 2


def test_a_result_passed_by_value_is_a_dependency(task_runner):
    def body():
        values = receive([1, 2])  # runs here
        child = receive.submit(values)
        child.wait()
        return flow_run_id(), child.task_run_id

    run_id, child = run(task_runner, body)
    runs = recorded(run_id, 2)

    assert {r.id for r in runs[child].task_inputs["value"]} == set(runs) - {child}


def test_a_queued_task_can_be_cancelled(task_runner, dask_cluster, tmp_path):
    def body(gate, address):
        with dask.annotate(workers=[address]):
            blocker = wait_for_file.submit(gate)
            queued = double.submit(1)
        queued.wrapped_future.cancel()
        with pytest.raises(CancelledError):
            queued.result()
        gate.touch()
        blocker.result()

    run(task_runner, body, tmp_path / "gate", dask_cluster.workers[0].address)


# What the lean runner does better


def test_futures_in_dataclasses_and_flows_that_name_locks(lean):
    def body():
        with A_LOCK:
            return unbox.submit(Box([double.submit(4)])).result()

    assert run(lean, body) == [8]


def test_a_subflow_shares_the_client_and_the_last_user_closes_it(lean):
    clients = []

    def subflow():
        clients.append(FlowRunContext.get().task_runner.client)
        return double.submit(1).result()

    def body():
        clients.append(FlowRunContext.get().task_runner.client)
        return run(lean.duplicate(), subflow) + run(lean.duplicate(), subflow)

    assert run(lean, body) == 4
    assert clients[0] is clients[1] is clients[2]
    assert clients[0].status == "closed"
    assert not runner._sessions


def test_a_client_that_was_passed_in_stays_open(lean):
    def body():
        return FlowRunContext.get().task_runner.client

    with Client(lean.address, set_as_default=False) as client:
        with shared_client(client):
            assert run(lean, body) is client
        assert client.status == "running"
    assert not runner._sessions


def test_an_installed_task_travels_by_name():
    blob, _ = dump_call(bench_runner.increment)

    assert b"deployments.bench_runner" in blob
    assert load_call(blob, ()).fn is bench_runner.increment.fn


def test_a_worker_keeps_few_contexts(lean):
    @task
    def num_contexts():
        from tasks import runner_engine

        return len(runner_engine._thread.cache)

    def body():
        return num_contexts.submit().result()

    counts = [run(lean, body) for _ in range(10)]  # 2 threads, 4 flow runs each

    assert max(counts) <= 4


# Completions


@task
def report(x: int) -> int:
    attach({"x": x, "rewards": [0.5, x / 2]})
    attach({"seconds": 0.25})
    return x


def test_every_task_completes_once_with_its_receipt_and_without_its_result(lean):
    def body():
        with Completions() as done:
            futures = {(f := report.submit(x)).task_run_id: (f, x) for x in range(20)}
            got = [done.next(timeout=60) for _ in futures]
            assert done.num_pending == 0
            with pytest.raises(LookupError, match="no task is pending"):
                done.next()
        assert {c.task_run_id for c in got} == set(futures)
        for c in got:
            future, x = futures[c.task_run_id]
            assert c.future is future
            assert c.succeeded
            assert c.receipt == {"x": x, "rewards": [0.5, x / 2], "seconds": 0.25}
            assert c.worker.startswith("inproc://")
            assert future._final_state is None  # nothing was fetched

    run(lean, body)


def test_failed_unready_and_cancelled_tasks_complete_too(lean, dask_cluster, tmp_path):
    def body(gate):
        with Completions() as done:
            failed = fail.submit("boom")
            child = receive.submit(failed)
            with dask.annotate(workers=[dask_cluster.workers[0].address]):
                blocker = wait_for_file.submit(gate)
                queued = double.submit(1)
            queued.wrapped_future.cancel()
            ends = {(c := done.next(timeout=60)).task_run_id: c for _ in range(3)}
            with pytest.raises(TimeoutError, match=r"within 0.01 s; 1 pending: wait_for_file-"):
                done.next(timeout=0.01)
            gate.touch()
            assert done.next(timeout=60).future is blocker
        states = [ends[f.task_run_id] for f in (failed, child, queued)]
        assert [c.state_type for c in states] == ["FAILED", "PENDING", "CANCELLED"]
        assert [c.state_name for c in states] == ["Failed", "NotReady", "Cancelled"]
        assert "ValueError: boom" in states[0].message
        assert str(failed.task_run_id) in states[1].message

    run(lean, body, tmp_path / "gate")


def test_flows_at_once_catch_only_their_own_tasks(lean):
    def subflow(name):
        with Completions() as done, tags(name):
            ids = {report.submit(x).task_run_id for x in range(10)}
            ends = [done.next(timeout=60) for _ in ids]
        assert {c.task_run_id for c in ends} == ids
        return flow_run_id(), name

    def body():
        with Completions() as done, ThreadPoolExecutor() as threads:
            copies = {name: contextvars.copy_context() for name in "abc"}
            flows = [threads.submit(c.run, run, lean, subflow, n) for n, c in copies.items()]
            ended = [f.result() for f in flows]
            assert done.num_pending == 0
        return ended

    for run_id, name in run(lean, body):
        assert {tuple(r.tags) for r in recorded(run_id, 10).values()} == {(name,)}


def test_completions_needs_the_lean_runner():
    def body():
        with pytest.raises(RuntimeError, match="LeanDaskTaskRunner"):
            Completions().__enter__()

    run(None, body)


class Big:
    pass


@task
def make_big() -> Any:
    big = Big()
    get_worker().weak_big = weakref.ref(big)
    return big


def test_a_dropped_future_frees_the_result_on_the_worker(lean, dask_cluster):
    worker = dask_cluster.workers[0]

    def body():
        with Completions() as done:
            with dask.annotate(workers=[worker.address]):
                future = make_big.submit()
            assert done.next(timeout=60).key in worker.data
            assert worker.weak_big() is not None
            del future
            until(lambda: not worker.data)
            until(lambda: worker.weak_big() is None)

    run(lean, body)


@task
def die() -> None:
    EventsWorker.instance().wait_until_empty()  # else the server may never hear of this run
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_killed_worker_gives_a_completion_and_can_be_marked():
    def body():
        with Completions() as done:
            dead = die.submit()
            child = receive.submit(dead)
            ends = {(c := done.next(timeout=90)).task_run_id: c for _ in range(2)}
            after = double.submit(21)  # the nanny started another worker
            assert done.next(timeout=60).future is after
        crashed = ends[dead.task_run_id]
        until(lambda: mark_crashed(crashed))
        assert crashed.state_type == ends[child.task_run_id].state_type == "CRASHED"
        assert crashed.message.startswith("KilledWorker")
        return crashed.task_run_id, after.result()

    with (
        dask.config.set({"distributed.scheduler.allowed-failures": 0}),
        LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=":0") as cluster,
    ):
        task_run_id, value = run(LeanDaskTaskRunner(cluster.scheduler_address), body)

    assert value == 42
    with get_client(sync_client=True) as client:
        assert client.read_task_run(task_run_id).state.is_crashed()
