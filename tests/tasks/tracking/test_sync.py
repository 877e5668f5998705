"""What a run's folder holds, sent to MLflow by another process than the run's."""

from types import SimpleNamespace

import pytest

from digen_core.checkpoints.run_state import LOCK_OF_RUN
from digen_core.transport.files import try_lock
from tasks.tracking import sync
from tasks.tracking.spool import RunOfSpool, Spool

RUN = RunOfSpool(uri="http://x", experiment_id="1", mlflow_run_id="r", name="run")


@pytest.fixture
def spool(tmp_path, monkeypatch):
    """The spool of a run whose process ended without a word; MLflow takes nothing."""
    monkeypatch.setattr(sync, "Sender", lambda *_: SimpleNamespace(close=lambda: None))
    monkeypatch.setattr(sync, "_require_original", lambda *_: None)
    own = Spool.create(tmp_path, RUN)
    own.append("status 1", "status", status="RUNNING", message="", time=1)
    return own


def statuses(spool) -> list[str]:
    return [entry["status"] for entry in spool.read()]


def send_rest(spool) -> sync.Sent:
    return sync.send_rest(spool.run_dir, RUN.uri)


def test_a_run_that_is_being_resumed_was_not_killed(spool):
    """It has its folder, but has not told MLflow yet that it goes on."""
    with try_lock(spool.run_dir / LOCK_OF_RUN):
        assert send_rest(spool).is_busy
    assert statuses(spool) == ["RUNNING"]
    assert not send_rest(spool).is_busy
    assert statuses(spool) == ["RUNNING", "KILLED"]


def test_none_is_resumed_while_it_is_told_of_as_killed(spool, monkeypatch):
    """Else MLflow would hear first that it goes on, and then that it was killed."""
    resumed = []

    def has_ended(own):
        with try_lock(own.run_dir / LOCK_OF_RUN) as may_resume:
            resumed.append(may_resume)
        return False

    monkeypatch.setattr(sync, "_has_ended", has_ended)
    send_rest(spool)
    assert resumed == [False]
    assert statuses(spool) == ["RUNNING", "KILLED"]
