import base64
import json
import logging
import re
import time
import weakref
from dataclasses import replace
from threading import Event

import httpx
import pytest
from prefect import flow
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import (
    ArtifactFilter,
    ArtifactFilterFlowRunId,
    FlowRunFilter,
    FlowRunFilterId,
)
from prefect.context import FlowRunContext

from digen_core.config.run import RunConfig
from digen_core.records import EvaluationReport, IterationRecord
from flows.launch import _on_pages
from tasks.views import artifacts
from tasks.views.artifacts import RunArtifacts
from tasks.views.display import Progress
from tasks.views.report import iteration_report, report_of

CONFIG = RunConfig(num_iterations=4)
LINKS = {"Dask": "http://127.0.0.1:8787/status", "MLflow": "mlflow ui --backend-store-uri x"}


def record_of(iteration: int) -> IterationRecord:
    metrics = {
        "reward/mean": 0.25 * (iteration + 1),
        "reward/shapes/exact": 0.125,
        "train/clip_fraction": 0.1,
        "device/rollout-0/busy_fraction": 0.75,
    }
    return IterationRecord(iteration, iteration + 1, 8.0, metrics)


def report_at(version: int, reward: float) -> EvaluationReport:
    return EvaluationReport(
        version=version, num_prompts=16, num_samples=128, rewards={"reward": reward}
    )


def test_an_iterations_page_says_what_the_devices_waited_for():
    metrics = {"idle/fill": 0.25, "idle/tail": 0.0, "idle/push": 0.125}
    idle = {
        "rollout-0": {"fill": 0.0, "tail": 0.0, "push": 0.25},
        "trainer-0": {"fill": 0.5, "tail": 0.0, "push": 0.0},
    }
    record = IterationRecord(7, 8, 12.5, metrics, idle=idle)
    without = iteration_report(record, b"")
    assert without.splitlines() == [
        "# iteration 8: 12.5 s",
        "",
        "| | busy | fill | push |",
        "|---|---:|---:|---:|",
        "| all devices | 62% | 25% | 12% |",
        "| rollout-0 | 75% | 0% | 25% |",
        "| trainer-0 | 50% | 50% | 0% |",
    ]
    picture = base64.b64encode(b"PNG").decode()
    line = f"![what the devices did](data:image/png;base64,{picture})"
    assert line in iteration_report(record, b"PNG").splitlines()


@flow
def watched_run(num_iterations: int) -> str:
    with RunArtifacts(CONFIG, "shapes-1", LINKS) as page:
        page.on_phase("starting workers")
        page.on_evaluation("before", report_at(0, 0.25))
        page.on_warning("the lamp is broken")
        for iteration in range(num_iterations):
            page.on_iteration(record_of(iteration))
    return str(FlowRunContext.get().flow_run.id)


def artifacts_of(flow_run_id: str) -> dict:
    with get_client(sync_client=True) as client:
        found = client.read_artifacts(
            artifact_filter=ArtifactFilter(flow_run_id=ArtifactFilterFlowRunId(any_=[flow_run_id])),
            flow_run_filter=FlowRunFilter(id=FlowRunFilterId(any_=[flow_run_id])),
        )
    return {artifact.key: artifact for artifact in found}


@pytest.mark.nightly
def test_a_flow_has_a_progress_bar_and_a_report(prefect_backend):
    found = artifacts_of(watched_run(3))
    assert set(found) == {"digen-progress", "digen-report", "digen-iteration"}
    progress, report = found["digen-progress"], found["digen-report"]
    assert (progress.type, progress.data) == ("progress", 75.0)
    assert progress.description.startswith("shapes-1: 3 of 4 iterations, finished, 0:0")
    assert progress.description.endswith("about 0:08 left")
    assert report.type == "markdown"
    assert "| reward | 0.250 | 0.750 |  | ▁▅█ |" in report.data
    assert "- **Warning:** the lamp is broken" in report.data


@pytest.mark.operation
def test_an_api_that_is_down_is_warned_about_once(prefect_backend, monkeypatch, caplog):
    def refuse(*_args, **_kwargs):
        raise httpx.ConnectError("connection refused")

    monkeypatch.setattr(artifacts, "create_progress_artifact", refuse)
    monkeypatch.setattr(artifacts, "create_markdown_artifact", refuse)
    with caplog.at_level(logging.WARNING, logger="tasks.views.artifacts"):
        assert artifacts_of(watched_run(3)) == {}
    (warning,) = [
        entry.message for entry in caplog.records if entry.name == "tasks.views.artifacts"
    ]
    assert "Prefect's API did not take the artifacts of shapes-1" in warning
    assert warning.endswith("connection refused")


def test_the_bar_of_a_resumed_run_begins_where_it_goes_on(monkeypatch):
    shown = []
    monkeypatch.setattr(RunArtifacts, "_send_state", lambda page, state: shown.append(state))
    with RunArtifacts(CONFIG, "shapes-1") as page:
        page.on_resume(3)
    assert shown[-1].percent == 75.0
    assert shown[-1].description.startswith("shapes-1: 3 of 4 iterations")


def test_an_api_that_hangs_does_not_hold_up_the_run(monkeypatch):
    answers = Event()
    monkeypatch.setattr(artifacts, "create_progress_artifact", lambda *_a, **_k: answers.wait(60))
    monkeypatch.setattr(artifacts, "create_markdown_artifact", lambda *_a, **_k: None)
    monkeypatch.setattr(artifacts, "LAST_WORD_SECONDS", 0.1)
    started = time.monotonic()
    with RunArtifacts(CONFIG, "shapes-1") as page:
        for iteration in range(4):
            page.on_iteration(record_of(iteration))
    assert time.monotonic() - started < 30
    answers.set()
    page._executor.shutdown()


def test_the_end_of_a_run_that_somebody_stopped_waits_less_for_it(monkeypatch):
    answers, answered = Event(), []
    for name in ("create_progress_artifact", "create_markdown_artifact"):
        monkeypatch.setattr(artifacts, name, lambda *_a, **_k: answered.append(answers.wait(60)))
    monkeypatch.setattr(artifacts, "LAST_WORD_SECONDS", 600.0)
    monkeypatch.setattr(artifacts, "STOPPED_SECONDS", 0.1)
    with pytest.raises(KeyboardInterrupt), _on_pages(CONFIG, "shapes-1", {}):
        raise KeyboardInterrupt
    assert answered == []
    answers.set()


def test_what_waits_for_an_api_that_is_away_holds_no_samples(monkeypatch):
    """That may be for days, with thousands of iterations."""

    class Rows(list):
        """A list to which weak references can be made."""

    answers = Event()
    for name in ("create_progress_artifact", "create_markdown_artifact"):
        monkeypatch.setattr(artifacts, name, lambda *_a, **_k: answers.wait(60))
    monkeypatch.setattr(artifacts, "LAST_WORD_SECONDS", 0.1)
    with RunArtifacts(CONFIG, "shapes-1") as page:
        rows = Rows()
        held = weakref.ref(rows)
        page.on_iteration(replace(record_of(0), samples=rows))
        del rows
        assert held() is None
    answers.set()
    page._executor.shutdown()


def test_an_answer_that_is_none_of_prefects_does_not_end_the_run(monkeypatch, caplog):
    """As where a proxy answers for a server that is away."""
    monkeypatch.setattr(artifacts, "create_progress_artifact", lambda *_a, **_k: json.loads("<"))
    with RunArtifacts(CONFIG, "shapes-1") as page:
        page.on_phase("training")
    assert "Prefect's API did not take the artifacts of shapes-1" in caplog.text


def test_an_error_that_is_not_the_apis_is_raised(monkeypatch):
    monkeypatch.setattr(artifacts, "create_progress_artifact", lambda *_a, **_k: 1 / 0)
    with pytest.raises(ZeroDivisionError), RunArtifacts(CONFIG, "shapes-1"):
        pass


def test_the_report_before_the_first_iteration():
    report = report_of("shapes-1", Progress(CONFIG), {})
    assert report == "# shapes-1\n\n0 of 4 iterations, starting, 0:00 elapsed\n"


def test_the_report_shows_metrics_evaluations_and_links():
    progress = Progress(CONFIG)
    for iteration in range(3):
        progress.add_iteration(record_of(iteration))
    progress.evaluations = {"before": report_at(0, 0.25), "after": report_at(3, 0.75)}
    report = report_of("shapes-1", progress, LINKS)
    assert "| shapes/exact | 0.125 | 0.125 |  | ▁▁▁ |" in report
    assert "| busy: rollout-0 | | 75% | | |" in report
    assert "| evaluation | before (version 0) | after (version 3) | change |  |\n" in report
    assert "| reward | 0.250 | 0.750 | +0.500 |  |\n" in report
    assert "- Dask: <http://127.0.0.1:8787/status>\n" in report
    assert "- MLflow: `mlflow ui --backend-store-uri x`\n" in report
    (picture,) = re.findall(r"!\[mean reward]\(data:image/svg\+xml;base64,(.*)\)", report)
    assert base64.b64decode(picture).startswith(b"<svg")
