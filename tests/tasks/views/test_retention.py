from uuid import uuid4

import pytest
from prefect import flow, tags, task
from prefect.artifacts import create_markdown_artifact
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import ArtifactFilter, FlowRunFilter
from prefect.context import FlowRunContext

from digen_core.config.run import RunConfig
from digen_core.records import IterationRecord
from support.runner_flows import recorded
from tasks.views import retention
from tasks.views.artifacts import RunArtifacts
from tasks.views.retention import ITERATION_FLOW, drop_iterations

NUM = 5


@task
def work() -> None:
    create_markdown_artifact("a picture", key="of-a-task")


@flow(name=ITERATION_FLOW, flow_run_name="i{index}")
def iteration(index: int, page: RunArtifacts, *, known: list[str]) -> None:
    known.append(str(FlowRunContext.get().flow_run.id))
    work()
    page.on_iteration(IterationRecord(index, index + 1, 1.0, {"reward/mean": 0.5}))


@flow(name="evaluation", flow_run_name="evaluation")
def evaluation() -> None:
    pass


@flow(validate_parameters=False)
def run_of(run_id: str, keep: int | str, known: list[str]) -> str:
    """Evaluate, and work on some iterations, as runs do."""
    config = RunConfig(num_iterations=NUM, tracking={"keep_in_prefect": keep})
    with RunArtifacts(config, run_id) as page, tags(run_id):
        evaluation()
        for index in range(NUM):
            iteration.with_options(validate_parameters=False)(index, page, known=known)
            recorded(known[-1], 1)  # as all are ten minutes after the end
    return str(FlowRunContext.get().flow_run.id)


def names_of(run_id: str) -> list[str]:
    with get_client(sync_client=True) as client:
        runs = client.read_flow_runs(flow_run_filter=FlowRunFilter(tags={"all_": [run_id]}))
    return sorted(run.name for run in runs)


def artifacts_of(flow_run_ids: list[str]) -> list[str]:
    own = ArtifactFilter(flow_run_id={"any_": flow_run_ids})
    with get_client(sync_client=True) as client:
        return sorted(artifact.key for artifact in client.read_artifacts(artifact_filter=own))


def task_runs_of(flow_run_id: str) -> int:
    with get_client(sync_client=True) as client:
        own = FlowRunFilter(id={"any_": [flow_run_id]})
        return len(client.read_task_runs(flow_run_filter=own))


@pytest.mark.nightly
def test_prefect_keeps_the_newest_iterations_of_a_run(prefect_backend, monkeypatch):
    monkeypatch.setattr(retention, "SETTLED_SECONDS", 0.0)
    other, own, known = f"other-{uuid4()}", f"own-{uuid4()}", []
    run_of(other, "all", [])
    flow_run_id = run_of(own, 2, known)

    assert drop_iterations(own, 2) in (0, 1)  # the last one had not ended when it was shown
    assert names_of(own) == ["evaluation", "i3", "i4"]
    assert [task_runs_of(known[index]) for index in range(NUM)] == [0, 0, 0, 1, 1]
    assert artifacts_of(known) == ["digen-iteration", "digen-iteration", "of-a-task", "of-a-task"]
    assert task_runs_of(flow_run_id) == 3, "the run's page has a place for each of the three"
    assert names_of(other) == ["evaluation", *(f"i{index}" for index in range(NUM))]


@pytest.mark.slow
@pytest.mark.operation
def test_what_is_still_told_of_stays(prefect_backend):
    run_id = f"new-{uuid4()}"
    run_of(run_id, "all", [])
    assert drop_iterations(run_id, 1) == 0
    assert len(names_of(run_id)) == NUM + 1
