"""The tracker of a run that is resumed."""

from unittest.mock import MagicMock

import pytest

from digen_core.config.run import RunConfig
from digen_core.records import EvaluationReport
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
