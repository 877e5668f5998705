import json
import logging
import platform
import re
import shlex
import shutil
import sqlite3
import time
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlparse

import numpy as np
import pytest
from mlflow import MlflowClient
from PIL import Image

from digen_core.config.run import RunConfig
from digen_core.errors import UserError
from digen_core.records import EvaluationReport, IterationRecord
from support.mlflow_server import free_port
from support.paths import ROOT
from support.runs import merged
from tasks.tracking import sender
from tasks.tracking.environment import read_environment
from tasks.tracking.params import flatten
from tasks.tracking.search import find_run
from tasks.tracking.server import page_of
from tasks.tracking.sync import send_rest
from tasks.tracking.tracker import Tracker


def config_in(folder, **tracking_keys) -> RunConfig:
    return RunConfig.model_validate({"tracking": {"runs_dir": str(folder), **tracking_keys}})


def start(config: RunConfig, run_dir, flow_run_id=None) -> Tracker:
    run_dir.mkdir(parents=True, exist_ok=True)
    (run_dir / "config.json").write_text(config.model_dump_json())
    return Tracker.start(config, run_dir.name, run_dir, flow_run_id)


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
    return start(config_in(runs_dir), runs_dir / request.node.name, flow_run_id="f1")


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
    assert run.data.tags["digen.run_dir"] == str(runs_dir / request.node.name)
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
    assert not tracker._spool.num_unsent


def nested_runs(tracker: Tracker) -> dict:
    client = MlflowClient(tracker.uri)
    tag = f"tags.`mlflow.parentRunId` = '{tracker.mlflow_run_id}'"
    return {run.info.run_name: run for run in client.search_runs([tracker.experiment_id], tag)}


def test_an_evaluation_is_a_nested_run_and_a_point_of_the_curves(tracker, tmp_path, request):
    assert tracker.log_evaluation("after", REPORT) == "after"
    tracker.log_images("after", ["a"], np.zeros((1, 2, 8, 8, 3), np.uint8), step=2)
    tracker.finish("FINISHED")
    values = {"evaluation/reward": 0.5, "evaluation/shapes/exact": 0.25}
    assert run_of(tracker).data.metrics == values
    ((name, nested),) = nested_runs(tracker).items()
    assert (name, nested.info.status) == (f"{request.node.name}-after", "FINISHED")
    assert nested.data.metrics == values
    assert nested.data.params["policy_version"] == "2"
    assert nested.data.params["evaluation.num_steps"] == "8"
    client = MlflowClient(tracker.uri)
    for run_id in (tracker.mlflow_run_id, nested.info.run_id):
        path = client.download_artifacts(run_id, "evaluation/after.json", str(tmp_path))
        with open(path) as file:
            assert EvaluationReport.model_validate(json.load(file)) == REPORT
        assert client.list_artifacts(run_id, "grids")[0].path == "grids/after.png"


def test_a_run_that_ends_again_has_another_evaluation_after(tracker, runs_dir, request):
    """Resumed with more iterations; what is done again after an interruption is told once."""
    images = np.zeros((1, 2, 8, 8, 3), np.uint8)
    tracker.log_evaluation("after", REPORT)
    tracker.log_images("after", ["a"], images, step=2)
    tracker.finish("FINISHED")
    later = REPORT.model_copy(update={"version": 5, "rewards": {"reward": 0.75}})
    folder = runs_dir / request.node.name
    for _ in range(2):
        again = Tracker.resume(config_in(runs_dir), folder)
        assert again.log_evaluation("after", later) == "after"
        again.log_images("after", ["a"], images, step=5)
        again.finish("FINISHED")
    nested = nested_runs(tracker)
    assert sorted(nested) == [f"{request.node.name}-{tag}" for tag in ("after", "after-v5")]
    second = nested[f"{request.node.name}-after-v5"]
    assert second.data.params["policy_version"] == "5"
    client = MlflowClient(tracker.uri)
    assert client.list_artifacts(second.info.run_id, "grids")[0].path == "grids/after.png"
    curve = client.get_metric_history(tracker.mlflow_run_id, "evaluation/reward")
    assert [(point.step, point.value) for point in curve] == [(2, 0.5), (5, 0.75)]
    kept = EvaluationReport.model_validate_json((folder / "evaluation/after.json").read_bytes())
    assert kept == later


def test_later_evaluations_are_nested_runs_only(tracker, runs_dir, request):
    tracker.log_evaluation("after", REPORT)
    tracker.finish("FAILED", "as it was")
    for number in (1, 2):
        again = Tracker.reopen(config_in(runs_dir), runs_dir / request.node.name)
        assert again.log_evaluation("again", REPORT) == f"again-{number}"
        again.finish("FINISHED")
    names = [f"{request.node.name}-{tag}" for tag in ("after", "again-1", "again-2")]
    assert sorted(nested_runs(tracker)) == names
    run = run_of(tracker)
    assert (run.info.status, run.data.tags["mlflow.note.content"]) == ("FAILED", "as it was")
    client = MlflowClient(tracker.uri)
    assert len(client.get_metric_history(tracker.mlflow_run_id, "evaluation/reward")) == 1


def test_a_folder_without_a_run_of_mlflow_gets_one_when_it_is_evaluated(runs_dir, tmp_path):
    config = config_in(runs_dir)
    (tmp_path / "config.json").write_text(config.model_dump_json())
    tracker = Tracker.reopen(config, tmp_path)
    tracker.log_evaluation("again", REPORT)
    tracker.finish("FINISHED")
    assert run_of(tracker).info.run_name == tmp_path.name
    assert list(nested_runs(tracker)) == [f"{tmp_path.name}-again-1"]


def test_images_are_a_labelled_grid(tracker, tmp_path):
    images = np.zeros((2, 3, 32, 32, 3), np.uint8)
    images[1, 2] = (255, 0, 0)
    tracker.log_evaluation("before", REPORT)
    tracker.log_images("before", ["a red circle", "two blue squares"], images, step=0)
    tracker.finish("FINISHED")
    with Image.open(artifact_of(tracker, "grids/before.png", tmp_path)) as grid:
        assert grid.width > 3 * 96
        assert grid.height > 2 * 96
        pixels = np.asarray(grid.convert("RGB"))
    red = (pixels == (255, 0, 0)).all(axis=-1)
    assert red.sum() == 96 * 96
    assert red[-50, -50]  # last row, last column


def test_videos_move(tracker, tmp_path):
    videos = np.zeros((1, 2, 5, 8, 8, 3), np.uint8)
    videos[:, :, 3] = 255
    tracker.log_evaluation("before", REPORT)
    tracker.log_images("before", ["a wave"], videos, step=0)
    tracker.finish("FINISHED")
    with Image.open(artifact_of(tracker, "videos/before.gif", tmp_path)) as animation:
        shades = []
        for frame in range(animation.n_frames):
            animation.seek(frame)
            shades.append(np.asarray(animation.convert("L"))[-50, -50])
            assert animation.info["duration"] >= 120
    assert max(shades) > 250 > 5 > min(shades)
    with Image.open(artifact_of(tracker, "grids/before.png", tmp_path)) as grid:
        assert np.asarray(grid.convert("L"))[-50, -50] < 5  # the frame in the middle


def test_what_a_run_was_made_with_is_kept(tracker, tmp_path):
    tracker.log_versions({0: "a", 1: "b"})
    tracker.log_versions({1: "b", 2: "other", 3: "d"})
    versions = Path(tracker._spool.run_dir) / "versions.jsonl"
    versions.write_text(versions.read_text() + '{"vers')
    tracker.log_versions({1: "b", 2: "c"})  # as a resumed run knows them
    tracker.finish("FINISHED")
    with open(artifact_of(tracker, "versions.jsonl", tmp_path)) as file:
        lines = [json.loads(line) for line in file]
    assert [(line["version"], line["hash"], line["parent"]) for line in lines] == [
        (0, "a", None), (1, "b", "a"), (2, "c", "b"),
    ]  # fmt: skip
    with open(artifact_of(tracker, "environment.txt", tmp_path)) as file:
        found = read_environment(file.read())
    assert found["numpy"] == np.__version__
    assert found["python"] == platform.python_version()


def test_everything_lies_in_the_runs_folder(tracker, runs_dir):
    tracker.finish("FINISHED")
    assert (runs_dir / "mlflow.db").exists()
    assert run_of(tracker).info.artifact_uri.startswith((runs_dir / "mlartifacts").as_uri())
    assert f"sqlite:///{runs_dir}/mlflow.db" in tracker.describe()


def test_two_runs_of_one_process_do_not_mix(runs_dir):
    first = start(config_in(runs_dir), runs_dir / "first")
    second = start(config_in(runs_dir, experiment="other"), runs_dir / "second")
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


def history_of(tracker: Tracker, name: str) -> list[tuple[int, float]]:
    client = MlflowClient(tracker.uri)
    history = client.get_metric_history(tracker.mlflow_run_id, name)
    return [(metric.step, metric.value) for metric in history]


def wait_until(condition):
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@contextmanager
def broken(database):
    """Take a table away from MLflow for a while."""
    with sqlite3.connect(database) as connection:
        connection.execute("ALTER TABLE metrics RENAME TO elsewhere")
    yield
    with sqlite3.connect(database) as connection:
        connection.execute("ALTER TABLE elsewhere RENAME TO metrics")


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(sender, "RETRY_SECONDS", 0.05)
    monkeypatch.setattr(sender, "LAST_WORD_SECONDS", 0.2)


def words_of(caplog) -> list[str]:
    """Levels of what digen says."""
    return [record.levelname for record in caplog.records if record.name.startswith("tasks")]


def test_what_a_broken_store_missed_is_told_when_it_is_mended(
    tracker, runs_dir, caplog, capfd, quick
):
    caplog.set_level(logging.INFO, logger="tasks.tracking")
    with broken(runs_dir / "mlflow.db"):
        for version in (1, 2, 3):
            tracker.log_iteration(record_of(version, **{"reward/mean": version / 10}))
        tracker.log_evaluation("after", REPORT)
        wait_until(lambda: words_of(caplog))
        time.sleep(0.3)
        assert tracker._spool.num_unsent == 5
    tracker.finish("FINISHED")
    assert words_of(caplog) == ["WARNING", "INFO"]
    assert "and what it logs is kept in" in caplog.text
    assert "Traceback" not in caplog.text + capfd.readouterr().err
    assert history_of(tracker, "reward/mean") == [(1, 0.1), (2, 0.2), (3, 0.3)]
    assert history_of(tracker, "evaluation/reward") == [(2, 0.5)]
    assert len(nested_runs(tracker)) == 1


def test_what_the_end_could_not_send_is_sent_later(tracker, runs_dir, request, caplog, quick):
    folder = runs_dir / request.node.name
    with broken(runs_dir / "mlflow.db"):
        tracker.log_iteration(record_of(1, **{"reward/mean": 0.5}))
        tracker.finish("FAILED", "out of time")
        assert f"'digen sync {folder}' sends them" in caplog.text
        assert send_rest(folder).num_left == 2
    assert send_rest(folder).num_left == 0
    assert history_of(tracker, "reward/mean") == [(1, 0.5)]
    assert run_of(tracker).info.status == "FAILED"
    assert send_rest(folder).num_sent == 0


def test_an_entry_that_is_refused_is_set_aside(tracker, runs_dir, request, caplog):
    folder = runs_dir / request.node.name
    tracker.log_iteration(record_of(1, **{"reward/mean": 0.5}))
    tracker.log_iteration(record_of(2, **{"no: name!": 0.5}))
    tracker.log_iteration(record_of(3, **{"reward/mean": 0.5}))
    tracker.finish("FINISHED")
    assert f"did not take iteration 0002 of {request.node.name}" in caplog.text
    (entry,) = tracker._spool.aside()
    assert entry["metrics"] == {"no: name!": 0.5}
    assert send_rest(folder).num_left == 1
    assert history_of(tracker, "reward/mean") == [(1, 0.5), (3, 0.5)]


def test_a_store_of_files_that_fails_holds_up_no_metrics(tracker, runs_dir, request):
    artifacts = MlflowClient(tracker.uri).get_run(tracker.mlflow_run_id).info.artifact_uri
    wait_until(lambda: not tracker._spool.num_unsent)
    blocked = Path(urlparse(artifacts).path) / "evaluation"
    blocked.write_text("in the way")
    tracker.log_evaluation("after", REPORT)
    tracker.log_iteration(record_of(1, **{"reward/mean": 0.5}))
    tracker.finish("FINISHED")
    assert history_of(tracker, "reward/mean") == [(1, 0.5)]
    assert run_of(tracker).info.status == "FINISHED"
    assert [entry["key"] for entry in tracker._spool.aside()] == ["evaluation/after.json"]
    blocked.unlink()
    assert send_rest(runs_dir / request.node.name).num_left == 0
    client = MlflowClient(tracker.uri)
    (found,) = client.list_artifacts(tracker.mlflow_run_id, "evaluation")
    assert found.path == "evaluation/after.json"


def test_what_is_sent_twice_is_there_once(tracker, runs_dir, request):
    tracker.log_iteration(record_of(1, **{"reward/mean": 0.5}))
    tracker.log_evaluation("after", REPORT)
    tracker.finish("FINISHED")
    (runs_dir / request.node.name / "tracking" / "sent.json").unlink()
    assert send_rest(runs_dir / request.node.name).num_sent == len(tracker._spool.read())
    assert history_of(tracker, "reward/mean") == [(1, 0.5)]
    assert len(nested_runs(tracker)) == 1


def test_an_interrupted_run_goes_on_as_one_run(tracker, runs_dir, request):
    folder = runs_dir / request.node.name
    for version in (1, 2):
        tracker.log_iteration(record_of(version, **{"reward/mean": version / 10}))
    tracker._sender.close()  # as if killed: without the last word
    again = Tracker.resume(config_in(runs_dir), folder, tracker.mlflow_run_id, "f2")
    for version in (2, 3):  # the second one is redone
        again.log_iteration(record_of(version, **{"reward/mean": version / 5}))
    again.finish("FINISHED")
    assert again.mlflow_run_id == tracker.mlflow_run_id
    assert history_of(tracker, "reward/mean") == [(1, 0.1), (2, 0.2), (3, 0.6)]
    run = run_of(tracker)
    assert (run.info.status, run.data.tags["prefect.flow_run_id"]) == ("FINISHED", "f2")


def test_what_a_run_is_resumed_with_is_tags(tracker, runs_dir, request):
    """MLflow takes no other value of a parameter; the newest is what compare shows."""
    folder, name = runs_dir / request.node.name, request.node.name
    tracker.finish("FINISHED")
    for changes in ({"num_iterations": 30}, {"num_iterations": 40, "rollout.fragment_size": 2}):
        changed = RunConfig.model_validate(merged(config_in(runs_dir).model_dump(), changes))
        Tracker.resume(changed, folder).finish("FINISHED")
    run = run_of(tracker)
    assert run.data.params == flatten(config_in(runs_dir).model_dump())
    tags = {key: own for key, own in run.data.tags.items() if key.startswith("resumed.")}
    assert tags == {"resumed.num_iterations": "40", "resumed.rollout.fragment_size": "2"}
    assert find_run(name, tracker.uri).config == flatten(changed.model_dump())


def test_a_copy_of_a_runs_folder_is_a_run_of_its_own(tracker, runs_dir, request):
    """Which begins with what the other had logged; the other one stays as it is."""
    folder, copy = runs_dir / request.node.name, runs_dir / "copy"
    tracker.log_iteration(record_of(1, **{"reward/mean": 0.1}))
    tracker.log_evaluation("iteration-0001", REPORT)
    tracker.finish("FINISHED")
    shutil.copytree(folder, copy)
    for value in (0.2, 0.3):  # also when it is resumed again
        again = Tracker.resume(config_in(runs_dir), copy, tracker.mlflow_run_id)
        again.log_iteration(record_of(int(10 * value), **{"reward/mean": value}))
        again.finish("FINISHED")
    assert history_of(tracker, "reward/mean") == [(1, 0.1)]
    assert history_of(again, "reward/mean") == [(1, 0.1), (2, 0.2), (3, 0.3)]
    assert len(nested_runs(again)) == len(nested_runs(tracker)) == 1
    run = run_of(again)
    assert (run.info.run_name, run.info.status) == ("copy", "FINISHED")
    assert run.data.tags["digen.copy_of"] == tracker.mlflow_run_id
    assert run.data.params == run_of(tracker).data.params


def test_a_folder_that_moved_is_the_same_run(tracker, runs_dir, request):
    folder, moved = runs_dir / request.node.name, runs_dir / f"{request.node.name}-moved"
    tracker.finish("KILLED")
    folder.rename(moved)
    again = Tracker.resume(config_in(runs_dir), moved)
    again.finish("FINISHED")
    assert again.mlflow_run_id == tracker.mlflow_run_id
    assert run_of(again).data.tags["digen.run_dir"] == str(moved)


def test_a_run_that_ended_without_a_word_is_told_of_as_killed(tracker, runs_dir, request):
    folder = runs_dir / request.node.name
    tracker.log_iteration(record_of(1, **{"reward/mean": 0.1}))
    assert send_rest(folder).is_busy  # it is still there, and sends itself
    tracker._sender.close()
    assert not send_rest(folder).is_busy
    assert run_of(tracker).info.status == "KILLED"


def test_a_copy_of_a_run_that_goes_on_does_not_tell_of_it_as_killed(tracker, runs_dir, request):
    folder, copy = runs_dir / request.node.name, runs_dir / "backup"
    shutil.copytree(folder, copy)
    with pytest.raises(UserError, match=rf"{copy} is a copy of {folder}, whose run of MLflow"):
        send_rest(copy)
    assert run_of(tracker).info.status == "RUNNING"
    tracker.finish("FINISHED")


@pytest.mark.parametrize("rewards", [{"reward": 0.5}, {"watched/score": 0.5}, {}], ids=list)
def test_a_run_whose_folder_forgot_what_it_logged_logs_nothing_twice(
    tracker, runs_dir, request, rewards
):
    """MLflow knows which iterations it has, and evaluations, whatever they show."""
    report = REPORT.model_copy(update={"rewards": rewards})
    folder = runs_dir / request.node.name
    for version in (1, 2):
        tracker.log_iteration(record_of(version, **{"time/iteration_seconds": version}))
    tracker.log_evaluation("iteration-0002", report)
    tracker.finish("KILLED")
    shutil.rmtree(folder / "tracking")
    resumed = Tracker.resume(config_in(runs_dir), folder, tracker.mlflow_run_id)
    for version in (2, 3):
        resumed.log_iteration(record_of(version, **{"time/iteration_seconds": version}))
    for tag in ("iteration-0002", "after"):
        resumed.log_evaluation(tag, report)
    resumed.finish("FINISHED")
    assert history_of(resumed, "time/iteration_seconds") == [(1, 1.0), (2, 2.0), (3, 3.0)]
    for name, value in rewards.items():
        assert history_of(resumed, f"evaluation/{name}") == [(2, value)] * 2, "each evaluation once"
    assert len(nested_runs(resumed)) == 2


def test_resuming_needs_a_run(tracker, tmp_path, runs_dir):
    tracker.finish("FAILED")
    with pytest.raises(UserError, match="does not say which run of MLflow it is"):
        Tracker.resume(config_in(runs_dir), tmp_path)


@pytest.mark.parametrize("how", ["database", "run", "folder"])
def test_a_run_that_mlflow_has_no_more_goes_on_in_a_new_one(
    tracker, runs_dir, tmp_path, request, how, caplog
):
    """Which is told all that was logged: its database is gone or elsewhere, or it was deleted."""
    folder, config = runs_dir / request.node.name, config_in(runs_dir)
    tracker.log_iteration(record_of(1, **{"reward/mean": 0.1}))
    tracker.log_evaluation("before", REPORT)
    tracker.finish("KILLED")
    if how == "run":
        MlflowClient(tracker.uri).delete_run(tracker.mlflow_run_id)
    else:
        config = config_in(runs_dir, mlflow_uri=f"sqlite:///{tmp_path / 'other.db'}")
    if how == "folder":
        shutil.rmtree(folder / "tracking")
    again = Tracker.resume(config, folder, tracker.mlflow_run_id)
    assert f"does not have the run that {folder} began there" in caplog.text
    if how == "folder":  # whoever resumes it logs what the run's folder has
        again.log_iteration(record_of(1, **{"reward/mean": 0.1}))
        again.log_evaluation("before", REPORT)
    again.log_iteration(record_of(2, **{"reward/mean": 0.2}))
    again.finish("FINISHED")
    assert again.mlflow_run_id != tracker.mlflow_run_id
    assert history_of(again, "reward/mean") == [(1, 0.1), (2, 0.2)]
    assert len(nested_runs(again)) == 1
    run = run_of(again)
    assert (run.info.run_name, run.info.status) == (folder.name, "FINISHED")
    assert Tracker.resume(config, folder).mlflow_run_id == again.mlflow_run_id, "it stays the run"


def test_a_run_is_removed_as_the_page_says(tracker, request):
    page = (ROOT / "docs/tracking.md").read_text()
    (script,) = re.findall(r"```python\n(.*?)```", page.partition("## Remove runs")[2], re.DOTALL)
    tracker.log_evaluation("before", REPORT)
    tracker.finish("FINISHED")
    client = MlflowClient(tracker.uri)
    model = client.create_logged_model(tracker.experiment_id, source_run_id=tracker.mlflow_run_id)
    client.create_registered_model("removed")
    client.create_model_version("removed", model.artifact_location, tracker.mlflow_run_id)
    script = script.replace("sqlite:///runs/mlflow.db", tracker.uri)
    exec(script.replace("shapes-20260101-120000", request.node.name), {})
    assert run_of(tracker).info.lifecycle_stage == "deleted"
    assert nested_runs(tracker) == {}
    assert not client.search_model_versions("name = 'removed'")
    of_run = f"source_run_id = '{tracker.mlflow_run_id}'"
    assert not client.search_logged_models([tracker.experiment_id], of_run)


def test_a_server_that_cannot_be_reached_is_a_config_error(tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    uri = f"http://127.0.0.1:{free_port()}"
    with pytest.raises(UserError, match=f"cannot start a run in MLflow at {uri}") as caught:
        start(config_in(tmp_path, mlflow_uri=uri), tmp_path / "run")
    assert "\n" not in str(caught.value)


def test_images_of_another_shape_are_refused(tracker):
    with pytest.raises(ValueError, match=r"need uint8 \[n, k, H, W, 3\]"):
        tracker.log_images("before", ["a"], np.zeros((1, 2, 3, 32, 32), np.uint8), step=0)
    with pytest.raises(ValueError, match="2 prompts label 1 rows"):
        tracker.log_images("before", ["a", "b"], np.zeros((1, 2, 32, 32, 3), np.uint8), step=0)
    tracker.finish("FAILED")


def test_the_address_opens_the_runs_of_the_experiment_with_reward_and_evaluation_first(tracker):
    client = MlflowClient(tracker.uri)
    tags = client.get_experiment(tracker.experiment_id).tags
    view = json.loads(tags["mlflow.sharedViewState.digen"])
    assert view["selectedColumns"][1] == "metrics.`evaluation/reward`"
    assert [section["name"] for section in view["compareRunSections"][:2]] == [
        "evaluation", "reward",
    ]  # fmt: skip
    assert view["compareRunCharts"][0]["metricKey"] == "evaluation/reward"
    place = f"#/experiments/{tracker.experiment_id}/runs?viewStateShareKey=digen"
    assert tracker.describe().endswith(f", then http://127.0.0.1:5000/{place}")
    assert page_of("http://host:5000/", "7") == (
        "http://host:5000/#/experiments/7/runs?viewStateShareKey=digen"
    )
    command = page_of("sqlite:////my runs/mlflow.db", "7").rpartition(", then ")[0]
    assert shlex.split(command)[-2:] == ["--backend-store-uri", "sqlite:////my runs/mlflow.db"]
