"""The tracker of a run that is resumed, and of one that ends."""

import gc
import weakref
from concurrent.futures import Future
from threading import Event, Thread
from unittest.mock import MagicMock

import pytest

from digen_core.config.run import RunConfig
from digen_core.records import EvaluationReport, IterationRecord
from tasks.tracking import sender
from tasks.tracking import tracker as module
from tasks.tracking.spool import RunOfSpool, Spool
from tasks.tracking.tracker import Tracker

RUN = RunOfSpool(uri="http://x", experiment_id="1", mlflow_run_id="r", name="run")


def report(version):
    return EvaluationReport(version=version, num_prompts=1, num_samples=1, rewards={"reward": 0.5})


@pytest.fixture
def logged(tmp_path):
    """The folder of a run that has logged some evaluations."""
    tracker = Tracker(RunConfig(), MagicMock(), Spool.create(tmp_path, RUN))
    for version in range(3):
        tracker.log_evaluation(f"iteration-{version:04d}", report(version))
    tracker.finish("FINISHED")
    return tmp_path


def test_what_was_logged_is_not_read_again_for_each_evaluation(logged, monkeypatch):
    spool = Spool.open(logged)
    monkeypatch.setattr(Spool, "read", None)
    tracker = Tracker(RunConfig(), MagicMock(), spool)
    for version in range(3):
        tracker.log_evaluation(f"iteration-{version:04d}", report(version))
    tracker.log_evaluation("iteration-0002", report(7))  # of another version now
    tracker.log_evaluation("iteration-0002", report(7))
    monkeypatch.undo()
    tracker.finish("FINISHED")
    names = [entry["evaluation"] for entry in spool.read() if entry["kind"] == "evaluation"]
    assert names == ["iteration-0000", "iteration-0001", "iteration-0002", "iteration-0002-v7"]


def test_evaluations_of_a_run_at_the_same_time_have_names_of_their_own(logged):
    """As by two commands on other prompts: the later one had the name of the earlier."""
    trackers = [Tracker(RunConfig(), MagicMock(), Spool.open(logged)) for _ in range(2)]
    names = []
    for number, tracker in enumerate(trackers):
        tracker._in_training = False
        names.append(tracker.log_evaluation("again", report(10 + number)))
    for tracker in trackers:
        tracker.finish("FINISHED")
    assert names == ["again-1", "again-2"]
    kept = [(logged / "evaluation" / f"{name}.json").read_text() for name in names]
    assert [EvaluationReport.model_validate_json(own).version for own in kept] == [10, 11]


def test_the_end_of_a_run_waits_until_a_picture_is_logged(tmp_path, monkeypatch):
    """Not only until it is drawn: its file is written after that, on a disk that may be busy."""
    is_over, replace_bytes = Event(), module.replace_bytes

    def slowly(*arguments):
        is_over.wait(1.0)
        replace_bytes(*arguments)

    monkeypatch.setattr(module, "replace_bytes", slowly)
    tracker = Tracker(RunConfig(), MagicMock(), spool := Spool.create(tmp_path, RUN))
    picture = Future()
    tracker.log_iteration(IterationRecord(0, 1, 1.0, {"x": 1.0}, timeline=picture))
    drawing = Thread(target=picture.set_result, args=(b"PNG",))
    drawing.start()
    tracker.finish("FINISHED")
    known = "timelines/iteration-0001.png" in spool
    is_over.set()
    drawing.join()
    assert known
    assert not spool.num_unsent


def test_the_end_of_a_run_that_somebody_stopped_waits_for_no_picture(tmp_path, monkeypatch):
    """It has few seconds in all, and MLflow has to hear of it."""
    monkeypatch.setattr(module, "PICTURE_SECONDS", 600.0)
    tracker = Tracker(RunConfig(), MagicMock(), spool := Spool.create(tmp_path, RUN))
    tracker.log_iteration(IterationRecord(0, 1, 1.0, {"x": 1.0}, timeline=Future()))
    ending = Thread(target=tracker.finish, args=("KILLED",), daemon=True)
    ending.start()
    ending.join(60)
    assert not ending.is_alive()
    assert spool.read()[-1]["status"] == "KILLED"


def test_a_timeline_that_is_logged_is_not_kept(tmp_path):
    tracker, kept = Tracker(RunConfig(), MagicMock(), Spool.create(tmp_path, RUN)), []
    for index in range(3):
        picture: Future[bytes] = Future()
        record = IterationRecord(index, index + 1, 1.0, {"a": 0.5}, timeline=picture)
        tracker.log_iteration(record)
        picture.set_result(b"PNG")
        kept.append(weakref.ref(picture))
        del picture, record
    gc.collect()
    assert [own() is None for own in kept] == [True, True, True]
    tracker.finish("FINISHED")
    assert len(list((tmp_path / "timelines").iterdir())) == 3


def test_an_iteration_that_is_done_again_has_its_timeline_again(tmp_path):
    """A run that goes back to a checkpoint removes those of what it does again."""
    tracker = Tracker(RunConfig(), MagicMock(), spool := Spool.create(tmp_path, RUN))
    for content in (b"first", b"second"):
        picture: Future[bytes] = Future()
        tracker.log_iteration(IterationRecord(10, 11, 1.0, {"a": 0.5}, timeline=picture))
        picture.set_result(content)
        path = tmp_path / "timelines" / "iteration-0011.png"
        assert path.read_bytes() == content
        path.unlink()
    tracker.finish("FINISHED")
    keys = [entry["key"] for entry in spool.read()]
    assert keys[:2] == ["iteration 0011", "timelines/iteration-0011.png"]
    assert len(keys) == 3  # and the end


def test_the_command_that_sends_the_rest_can_be_copied(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(sender, "LAST_WORD_SECONDS", 0.0)
    folder = tmp_path / "my run"
    client = MagicMock()
    client.log_batch.side_effect = ConnectionError
    tracker = Tracker(RunConfig(), client, Spool.create(folder, RUN))
    tracker.log_iteration(IterationRecord(0, 1, 1.0, {"a": 0.5}))
    tracker.finish("FINISHED")
    assert f"digen sync '{folder}' --mlflow-uri http://x' sends them" in caplog.text
