"""The lean runner against Prefect's stock Dask runner: the same flows, the same outcome."""

import threading
from concurrent.futures import CancelledError
from typing import Any

import dask
import pytest
from distributed import Client, LocalCluster
from prefect import tags, task, unmapped
from prefect.client.orchestration import PrefectClient
from prefect.context import FlowRunContext
from prefect_dask import DaskTaskRunner

from deployments.bench import runner as bench_runner
from support.runner_flows import (
    Box,
    add,
    double,
    double_later,
    exists,
    fail,
    flaky,
    flow_run_id,
    receive,
    recorded,
    run,
    states_of,
    total,
    touch,
    unbox,
    until,
    wait_for_file,
    where,
)
from tasks.runner import running
from tasks.runner import task_runner as runner
from tasks.runner.pickling import dump_call, load_call
from tasks.runner.prefect_api import one_async_client
from tasks.runner.running import SECONDS
from tasks.runner.task_runner import LeanDaskTaskRunner, shared_client

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("prefect_backend")]

A_LOCK = threading.Lock()


@pytest.fixture(params=[LeanDaskTaskRunner, DaskTaskRunner], ids=["lean", "stock"])
def task_runner(request: pytest.FixtureRequest, dask_cluster: LocalCluster) -> Any:
    return request.param(address=dask_cluster.scheduler_address)


@pytest.fixture
def lean(dask_cluster: LocalCluster) -> LeanDaskTaskRunner:
    return LeanDaskTaskRunner(dask_cluster.scheduler_address)


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


def test_a_task_run_that_takes_a_while_is_seen_to_run(lean, tmp_path, monkeypatch):
    def body():
        with monkeypatch.context() as patch:  # the machine may be busy
            patch.setattr(running, "SECONDS", 1000.0)
            (done := double.submit(1)).wait()
        short = done.task_run_id
        long = wait_for_file.submit(tmp_path / "ended")
        until(lambda: [state.name for state in states_of(long.task_run_id)] == ["Running"])
        (tmp_path / "ended").touch()
        long.wait()
        return flow_run_id(), short, long.task_run_id

    try:
        run_id, short, long = run(lean, body)
    finally:
        (tmp_path / "ended").touch()
    runs = recorded(run_id, 2)

    assert [state.name for state in states_of(short)] == ["Completed"]
    assert sorted(state.name for state in states_of(long)) == ["Completed", "Running"]
    assert runs[short].start_time < runs[short].end_time < runs[long].end_time
    assert runs[long].total_run_time.total_seconds() > SECONDS
    assert [runs[short].run_count, runs[long].run_count] == [1, 1]


@pytest.mark.nightly
def test_subflows_share_an_asynchronous_client_while_a_run_is_open(lean, monkeypatch):
    opened = []
    enter = PrefectClient.__aenter__

    async def entering(client):
        if not client._started:
            opened.append(client)
        return await enter(client)

    monkeypatch.setattr(PrefectClient, "__aenter__", entering)

    def subflow():
        return double.submit(1).result()

    def body():
        return [run(lean.duplicate(), subflow) for _ in range(3)]

    def open_run():
        with one_async_client():
            return body()

    assert run(lean, open_run) == run(lean, body) == [2, 2, 2]
    (one, *others) = opened
    assert len(others) == 3
    assert one._closed


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

    assert b"deployments.bench.runner" in blob
    assert load_call(blob, ()).fn is bench_runner.increment.fn


@pytest.mark.nightly
def test_a_worker_keeps_few_contexts(lean):
    @task
    def num_contexts():
        from tasks.runner import context as runner_engine

        return len(runner_engine._kept)

    def body():
        return num_contexts.submit().result()

    counts = [run(lean, body) for _ in range(10)]

    assert max(counts) <= 4
