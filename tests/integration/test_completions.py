"""Completions: every end of a task reaches the flow once, and results do not."""

import contextvars
from concurrent.futures import ThreadPoolExecutor

import dask
import pytest
from distributed import LocalCluster
from prefect import get_client, tags

from support.runner_flows import (
    die,
    double,
    fail,
    flow_run_id,
    make_big,
    receive,
    recorded,
    report,
    run,
    until,
    wait_for_file,
)
from tasks.receipts import Denoised, Ran, Receipt, Sampled
from tasks.runner.completions import Completions, mark_crashed
from tasks.runner.task_runner import LeanDaskTaskRunner

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("prefect_backend")]


@pytest.fixture
def lean(dask_cluster: LocalCluster) -> LeanDaskTaskRunner:
    return LeanDaskTaskRunner(dask_cluster.scheduler_address)


def test_every_task_completes_once_with_its_receipt_and_without_its_result(lean):
    def body():
        with Completions() as done:
            submitted = [(report.task.submit("run", f"report {x}", x), x) for x in range(20)]
            futures = {future.task_run_id: (future, x) for future, x in submitted}
            got = [done.next(timeout=60) for _ in futures]
            assert done.num_pending == 0
            with pytest.raises(LookupError, match="no task is pending"):
                done.next()
        assert {c.task_run_id for c in got} == set(futures)
        for c in got:
            future, x = futures[c.task_run_id]
            assert c.future is future
            assert c.succeeded
            assert report.read(c.receipt) == Receipt(
                Ran("here", 1.0, 2.0, num_bytes=x),
                Denoised(x, 0.25, [Sampled({0: [0.5, x / 2]})]),
            )
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


@pytest.mark.ci
def test_flows_at_once_catch_only_their_own_tasks(lean):
    def subflow(name):
        with Completions() as done, tags(name):
            ids = {report.task.submit("run", f"report {x}", x).task_run_id for x in range(10)}
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


@pytest.mark.ci
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
