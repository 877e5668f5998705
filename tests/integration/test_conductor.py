"""Iterations in flow runs that are opened ahead: each has its own tasks, and none is left open."""

import threading
import time
from itertools import pairwise
from types import SimpleNamespace

import pytest

from digen_core.config.run import RunConfig
from support.runs import Watch, merged

pytestmark = pytest.mark.slow


def flow_runs_of(run_id: str) -> dict[str, SimpleNamespace]:
    """Return each iteration's flow run, by name: state, times and names of its task runs."""
    from prefect import get_client
    from prefect.client.schemas.filters import FlowRunFilter

    found = {}
    with get_client(sync_client=True) as client:
        like = FlowRunFilter(name={"like_": f"{run_id}-i0"})
        for flow_run in client.read_flow_runs(flow_run_filter=like):
            ids = FlowRunFilter(id={"any_": [flow_run.id]})
            tasks = client.read_task_runs(flow_run_filter=ids)
            found[flow_run.name.removeprefix(f"{run_id}-")] = SimpleNamespace(
                state=flow_run.state,
                started=flow_run.start_time,
                ended=flow_run.end_time,
                tasks=sorted(t.name for t in tasks),
                parent=flow_run.parent_task_run_id,
            )
    return found


def threads_of_iterations() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith("iteration-")]


class WatchAhead(Watch):
    """Remembers which flow runs were there when an iteration published its record."""

    def __init__(self):
        super().__init__()
        self.alive = []

    def on_iteration(self, record):
        super().on_iteration(record)
        self.alive.append(threads_of_iterations())


def run(tree, changes):
    from flows.post_train import post_train
    from flows.runtime.observers import watching

    watch = WatchAhead()
    with watching(watch):
        report = post_train(RunConfig.model_validate(merged(tree, changes)))
    assert not threads_of_iterations()
    return report, watch


@pytest.mark.ci
def test_tasks_show_under_their_own_iteration(tree, cluster_address, prefect_backend):
    changes = {
        "num_iterations": 3,
        "cluster.scheduler_address": cluster_address(1, 1),
    }
    report, watch = run(tree, changes)
    records = watch.records
    assert [record.iteration for record in records] == [0, 1, 2]
    assert "iteration-0001" in watch.alive[0]  # opened ahead
    assert "iteration-0002" in watch.alive[1]
    expected = [sorted(span.task for span in record.spans) for record in records]
    for index, names in enumerate(expected):
        assert f"optimizer step v{index + 1}" in names
        assert {span.iteration for span in records[index].spans} == {index}

    deadline = time.monotonic() + 30  # the server lags behind
    while True:
        found = flow_runs_of(report.run_id)
        if [found[f"i000{i + 1}"].tasks for i in range(3)] == expected:
            break
        assert time.monotonic() < deadline, found
        time.sleep(0.2)
    runs = [found[f"i000{index + 1}"] for index in range(3)]
    assert all(flow_run.state.is_completed() for flow_run in runs)
    assert all(flow_run.parent for flow_run in runs)
    for before, after in pairwise(runs):
        assert before.started < after.started


@pytest.mark.ci
@pytest.mark.parametrize(
    "limit",
    [
        pytest.param({"max_minutes": 1e-6}, marks=pytest.mark.operation),
        {"max_cost": 1e-6, "cluster.price_per_hour": {"cpu": 2.5}},
    ],
    ids=["time", "money"],
)
def test_a_run_whose_limit_is_reached_ends_after_the_iteration(
    tree, cluster_address, prefect_backend, limit
):
    changes = {
        "num_iterations": 5,
        "cluster.scheduler_address": cluster_address(1, 1),
        **limit,
    }
    report, watch = run(tree, changes)
    assert (report.num_iterations, report.version) == (1, 1)
    assert [record.iteration for record in watch.records] == [0]
    assert report.after.version == 1
    (record,) = watch.records
    assert ("cost/total" in record.metrics) == ("max_cost" in limit)
    assert record.metrics.get("cost/total", 1.0) > 1e-6
    others = [r for name, r in flow_runs_of(report.run_id).items() if name != "i0001"]
    assert all(flow_run.state.is_cancelled() for flow_run in others)


@pytest.mark.ci
def test_a_run_whose_record_cannot_be_published_fails(tree, cluster_address, prefect_backend):
    from flows.post_train import post_train
    from flows.runtime.observers import watching

    class Broken(Watch):
        def on_iteration(self, record):
            raise OSError("no space left on device")

    config = merged(tree, {"cluster.scheduler_address": cluster_address(1, 1)})
    with watching(Broken()), pytest.raises(OSError, match="no space left"):
        post_train(RunConfig.model_validate(config))
    assert not threads_of_iterations()
