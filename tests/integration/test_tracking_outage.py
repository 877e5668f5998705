"""A real MLflow server that goes away in mid-run and comes back: nothing is missing, or twice."""

import json
import time
from pathlib import Path

import numpy as np
import pytest
from mlflow import MlflowClient

from digen_core.config.run import RunConfig
from digen_core.records import EvaluationReport, IterationRecord
from support.mlflow_server import MlflowServer
from support.runs import Watch
from tasks.tracking.sync import send_rest
from tasks.tracking.tracker import Tracker

pytestmark = pytest.mark.ci

WAITED = 20.0  # seconds; MLflow tries again for minutes, and a busy disk may take a second or two
BEFORE, DURING, AFTER = range(3), range(3, 30), range(30, 33)


def metrics_of(iteration: int) -> dict[str, float]:
    names = ("reward/mean", "train/loss", "time/iteration_seconds", "system/w/cpu_percent")
    return {name: iteration + number / 7 for number, name in enumerate(names)}


def log(tracker: Tracker, iterations: range, seconds: float = 0.0) -> None:
    """Log iterations, and say how long the slowest call took."""
    for index in iterations:
        started = time.monotonic()
        tracker.log_iteration(IterationRecord(index, index + 1, 1.0, metrics_of(index)))
        assert time.monotonic() - started < WAITED, "logging waited for the server"
        time.sleep(seconds / len(iterations))


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    server = MlflowServer(tmp_path_factory.mktemp("server"))
    server.start()
    yield server
    server.stop()


@pytest.mark.parametrize("seconds", [2, pytest.param(60, marks=pytest.mark.operation)])
def test_training_goes_on_and_nothing_is_missing(tmp_path, server, seconds):
    tracking = {"runs_dir": str(tmp_path), "mlflow_uri": server.uri}
    config = RunConfig.model_validate({"tracking": tracking})
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "config.json").write_text(config.model_dump_json())
    tracker = Tracker.start(config, "run", folder)
    log(tracker, BEFORE)
    wait_until(lambda: not tracker._spool.num_unsent)
    server.stop()
    log(tracker, DURING, seconds)
    report = EvaluationReport(version=30, num_prompts=1, num_samples=2, rewards={"reward": 0.5})
    tracker.log_evaluation("middle", report)
    tracker.log_images("middle", ["a"], np.zeros((1, 2, 8, 8, 3), np.uint8), step=30)
    assert tracker._spool.num_unsent
    server.start()
    log(tracker, AFTER)
    wait_until(lambda: not tracker._spool.num_unsent)  # by itself, before the end
    tracker.finish("FINISHED")
    check(server.uri, tracker, folder)


@pytest.mark.nightly
def test_who_watches_a_run_is_told_what_mlflow_has_not_taken(tmp_path, server):
    from flows.launch import _ended_in
    from flows.runtime.observers import watching

    tracking = {"runs_dir": str(tmp_path), "mlflow_uri": server.uri}
    config, folder, watch = (
        RunConfig.model_validate({"tracking": tracking}),
        tmp_path / "run",
        Watch(),
    )
    folder.mkdir()
    (folder / "config.json").write_text(config.model_dump_json())
    tracker = Tracker.start(config, "run", folder)
    log(tracker, BEFORE)
    wait_until(lambda: not tracker._spool.num_unsent)
    with watching(watch), _ended_in(tracker):
        server.stop()
    server.start()
    away, said = watch.warnings
    assert (
        f"does not take what run logs; the run goes on, and what it logs is kept in {folder}"
        in away
    )
    assert f"'digen sync {folder} --mlflow-uri {server.uri}' sends them" in said
    assert send_rest(folder, server.uri).num_left == 0


def check(uri: str, tracker: Tracker, folder: Path) -> None:
    """Compare all that MLflow has with all that was logged."""
    client = MlflowClient(uri)
    run = client.get_run(tracker.mlflow_run_id)
    assert run.info.status == "FINISHED"
    assert set(run.data.metrics) == {*metrics_of(0), "evaluation/reward"}
    for name in metrics_of(0):
        history = client.get_metric_history(tracker.mlflow_run_id, name)
        expected = [(i + 1, metrics_of(i)[name]) for i in (*BEFORE, *DURING, *AFTER)]
        assert [(metric.step, metric.value) for metric in history] == expected
    tag = f"tags.`mlflow.parentRunId` = '{tracker.mlflow_run_id}'"
    (nested,) = client.search_runs([tracker.experiment_id], tag)
    assert nested.data.metrics == {"evaluation/reward": 0.5}
    names = {item.path for item in client.list_artifacts(tracker.mlflow_run_id)}
    assert names == {"config.json", "environment.txt", "evaluation", "grids"}
    entries = (folder / "tracking" / "entries.jsonl").read_text().splitlines()
    sent = json.loads((folder / "tracking" / "sent.json").read_text())
    assert sent["num_entries"] == len(entries)


def wait_until(condition) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)
