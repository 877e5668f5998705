import json
import logging
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from concurrent.futures import wait
from contextlib import contextmanager

import numpy as np
import pytest
import requests
from mlflow import MlflowClient
from PIL import Image

from digen_core.config import ConfigError, RunConfig
from digen_core.records import EvaluationReport, IterationRecord
from tasks import tracking
from tasks.tracking import Tracker, flatten


def config_in(folder, **tracking_keys) -> RunConfig:
    return RunConfig.model_validate({"tracking": {"runs_dir": str(folder), **tracking_keys}})


def record_of(version: int, **metrics: float) -> IterationRecord:
    return IterationRecord(iteration=version - 1, version=version, seconds=1.0, metrics=metrics)


REPORT = EvaluationReport(
    version=2, num_prompts=3, num_samples=24, rewards={"reward": 0.5, "shapes/exact": 0.25}
)


@pytest.fixture(scope="module")
def runs_dir(tmp_path_factory):
    return tmp_path_factory.mktemp("runs")


@pytest.fixture
def tracker(runs_dir, request):
    config = config_in(runs_dir)
    return Tracker.start(config, request.node.name, runs_dir / "run", flow_run_id="f1")


def run_of(tracker: Tracker):
    return MlflowClient(tracker.uri).get_run(tracker.mlflow_run_id)


def artifact_of(tracker: Tracker, path: str, folder):
    client = MlflowClient(tracker.uri)
    return client.download_artifacts(tracker.mlflow_run_id, path, str(folder))


def test_every_key_of_the_config_is_a_parameter(tracker, runs_dir, tmp_path):
    tracker.finish("FINISHED")
    run = run_of(tracker)
    assert run.data.params["rollout.group_size"] == "16"
    assert run.data.params["rewards.shapes.weight"] == "1.0"
    assert run.data.params["algorithm.clip_range"] == "0.0001"
    assert run.data.params["algorithm.window"] == "null"
    assert len(run.data.params) == len(flatten(RunConfig().model_dump()))
    with open(artifact_of(tracker, "config.json", tmp_path)) as file:
        assert RunConfig.model_validate(json.load(file)) == config_in(runs_dir)


def test_the_run_is_named_and_tagged(tracker, runs_dir, request):
    tracker.finish("FAILED", "a worker was lost")
    run = run_of(tracker)
    assert run.info.run_name == request.node.name
    assert run.info.status == "FAILED"
    assert run.data.tags["mlflow.note.content"] == "a worker was lost"
    assert run.data.tags["prefect.flow_run_id"] == "f1"
    assert run.data.tags["digen.run_dir"] == str(runs_dir / "run")
    assert run.data.tags["digen.version"]


def test_metrics_have_the_version_as_their_step(tracker):
    for version in (1, 2, 3):
        metrics = {"reward/mean": version / 10, "device/rollout-0/busy_fraction": 0.5}
        tracker.log_iteration(record_of(version, **metrics))
    tracker.finish("FINISHED")
    history = MlflowClient(tracker.uri).get_metric_history(tracker.mlflow_run_id, "reward/mean")
    assert [(metric.step, metric.value) for metric in history] == [(1, 0.1), (2, 0.2), (3, 0.3)]
    assert run_of(tracker).data.metrics["device/rollout-0/busy_fraction"] == 0.5


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_metric_that_is_not_finite_is_an_error(tracker, value):
    with pytest.raises(ValueError, match=r"metric train/loss is .* at step 4"):
        tracker.log_iteration(record_of(4, **{"reward/mean": 0.5, "train/loss": value}))
    tracker.finish("FAILED")
    assert run_of(tracker).data.metrics == {}


def test_an_evaluation_is_metrics_and_a_report(tracker, tmp_path):
    tracker.log_evaluation("after", REPORT)
    tracker.finish("FINISHED")
    assert run_of(tracker).data.metrics == {
        "evaluation/reward": 0.5,
        "evaluation/shapes/exact": 0.25,
    }
    with open(artifact_of(tracker, "evaluation/after.json", tmp_path)) as file:
        assert EvaluationReport.model_validate(json.load(file)) == REPORT


def test_images_are_a_labelled_grid(tracker, tmp_path):
    images = np.zeros((2, 3, 32, 32, 3), np.uint8)
    images[1, 2] = (255, 0, 0)
    tracker.log_images("before", ["a red circle", "two blue squares"], images, step=0)
    tracker.finish("FINISHED")
    with Image.open(artifact_of(tracker, "grids/before.png", tmp_path)) as grid:
        assert grid.width > 3 * 96
        assert grid.height > 2 * 96
        pixels = np.asarray(grid.convert("RGB"))
    red = (pixels == (255, 0, 0)).all(axis=-1)
    assert red.sum() == 96 * 96
    assert red[-50, -50]  # last row, last column


def test_a_folder_is_kept_as_artifacts(tracker, tmp_path):
    (tmp_path / "weights").mkdir()
    (tmp_path / "weights" / "lora.txt").write_text("w")
    tracker.log_folder(tmp_path / "weights", "policy")
    tracker.finish("FINISHED")
    with open(artifact_of(tracker, "policy/lora.txt", tmp_path)) as file:
        assert file.read() == "w"


def test_a_folder_that_is_missing_is_an_error(tracker, tmp_path):
    with pytest.raises(NotADirectoryError, match="nothing to log"):
        tracker.log_folder(tmp_path / "nowhere", "policy")
    tracker.finish("FAILED")


def test_everything_lies_in_the_runs_folder(tracker, runs_dir):
    tracker.finish("FINISHED")
    assert (runs_dir / "mlflow.db").exists()
    assert run_of(tracker).info.artifact_uri.startswith((runs_dir / "mlartifacts").as_uri())
    assert f"sqlite:///{runs_dir}/mlflow.db" in tracker.describe()


def test_two_runs_of_one_process_do_not_mix(runs_dir):
    first = Tracker.start(config_in(runs_dir), "first", runs_dir / "first")
    second = Tracker.start(config_in(runs_dir, experiment="other"), "second", runs_dir / "second")
    for version in range(1, 21):
        first.log_iteration(record_of(version, **{"reward/mean": 1.0}))
        second.log_iteration(record_of(version, **{"reward/mean": 2.0, "train/kl": 0.0}))
    first.finish("FINISHED")
    second.log_iteration(record_of(21, **{"reward/mean": 2.0}))
    second.finish("KILLED")
    client = MlflowClient(first.uri)
    for tracker, value, count in ((first, 1.0, 20), (second, 2.0, 21)):
        history = client.get_metric_history(tracker.mlflow_run_id, "reward/mean")
        assert {metric.value for metric in history} == {value}
        assert len(history) == count
    assert "train/kl" not in run_of(first).data.metrics
    assert (run_of(first).info.status, run_of(second).info.status) == ("FINISHED", "KILLED")


def test_a_store_that_breaks_in_mid_run_is_warned_about_once(tmp_path, caplog):
    tracker = Tracker.start(config_in(tmp_path), "run", tmp_path / "run")
    with sqlite3.connect(tmp_path / "mlflow.db") as database:
        database.execute("DROP TABLE metrics")
    with caplog.at_level(logging.WARNING, logger="tasks.tracking"):
        for version in (1, 2):
            tracker.log_iteration(record_of(version, **{"reward/mean": 0.5}))
        tracker.finish("FINISHED")
    (warning,) = [entry for entry in caplog.records if entry.name == "tasks.tracking"]
    assert "did not take metrics of iteration 1" in warning.message


def test_a_server_that_hangs_does_not_hold_up_the_run(runs_dir, monkeypatch, caplog):
    tracker = Tracker.start(config_in(runs_dir), "run", runs_dir / "run")
    monkeypatch.setattr(tracking, "FLUSH_SECONDS", 0.1)
    monkeypatch.setattr(tracker._client, "log_batch", lambda *_args: time.sleep(1))
    started = time.monotonic()
    tracker.log_iteration(record_of(1, **{"reward/mean": 0.5}))
    tracker.finish("FINISHED")
    assert time.monotonic() - started < 1
    assert "is behind; 2 calls" in caplog.text


def test_an_error_that_is_not_mlflows_is_raised(runs_dir, monkeypatch):
    tracker = Tracker.start(config_in(runs_dir), "run", runs_dir / "run")
    monkeypatch.setattr(tracker._client, "log_batch", lambda *_args: 1 / 0)
    tracker.log_iteration(record_of(1, **{"reward/mean": 0.5}))
    with pytest.raises(ZeroDivisionError):
        tracker.finish("FINISHED")


@pytest.mark.slow
def test_a_server_that_dies_in_mid_run_does_not_end_the_run(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    uri = f"http://127.0.0.1:{free_port()}"
    with server_at(uri, tmp_path) as server:
        tracker = Tracker.start(config_in(tmp_path, mlflow_uri=uri), "run", tmp_path / "run")
        assert tracker.describe().startswith(f"{uri}/#/experiments/")
        tracker.log_iteration(record_of(1, **{"reward/mean": 0.5}))
        tracker.log_images("before", ["a"], np.zeros((1, 2, 8, 8, 3), np.uint8), step=0)
        wait(tracker._pending)
        assert run_of(tracker).data.metrics == {"reward/mean": 0.5}
        assert artifact_of(tracker, "grids/before.png", tmp_path)
        assert not caplog.records
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()
        with caplog.at_level(logging.WARNING, logger="tasks.tracking"):
            tracker.log_iteration(record_of(2, **{"reward/mean": 0.5}))
            tracker.log_evaluation("after", REPORT)
            tracker.finish("FINISHED")
    (warning,) = [entry for entry in caplog.records if entry.name == "tasks.tracking"]
    assert f"MLflow at {uri} did not take metrics of iteration 2" in warning.message


def free_port() -> int:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        return unused.getsockname()[1]


@contextmanager
def server_at(uri: str, folder):
    command = [sys.executable, "-m", "mlflow", "server", "--workers", "1"]
    command += ["--port", uri.rpartition(":")[2], "--backend-store-uri"]
    command += [f"sqlite:///{folder}/server.db", "--artifacts-destination", f"{folder}/artifacts"]
    with open(folder / "server.log", "w") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
    try:
        deadline = time.monotonic() + 120
        while not answers(f"{uri}/health"):
            assert server.poll() is None, (folder / "server.log").read_text()
            assert time.monotonic() < deadline, "the MLflow server did not start"
            time.sleep(0.2)
        yield server
    finally:
        if server.poll() is None:
            os.killpg(server.pid, signal.SIGKILL)
            server.wait()


def answers(url: str) -> bool:
    try:
        return requests.get(url, timeout=5).ok
    except requests.ConnectionError:
        return False


def test_a_server_that_cannot_be_reached_is_a_config_error(tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    uri = f"http://127.0.0.1:{free_port()}"
    with pytest.raises(ConfigError, match=f"cannot start a run in MLflow at {uri}") as caught:
        Tracker.start(config_in(tmp_path, mlflow_uri=uri), "run", tmp_path)
    assert "\n" not in str(caught.value)


def test_images_of_another_shape_are_refused(tracker):
    with pytest.raises(ValueError, match=r"need uint8 \[n, k, H, W, 3\]"):
        tracker.log_images("before", ["a"], np.zeros((1, 2, 3, 32, 32), np.uint8), step=0)
    with pytest.raises(ValueError, match="2 prompts label 1 rows"):
        tracker.log_images("before", ["a", "b"], np.zeros((1, 2, 32, 32, 3), np.uint8), step=0)
    tracker.finish("FAILED")
