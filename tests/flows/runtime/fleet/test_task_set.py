"""What a run is told of tasks that failed."""

import threading
from contextlib import nullcontext
from types import SimpleNamespace
from unittest.mock import Mock
from uuid import UUID

import pytest
from prefect.settings import PREFECT_API_URL, temporary_settings

from flows.runtime.fleet.task_set import TaskFailedError, receipt_of
from support.waiting import comes_to
from tasks.runner import completions
from tasks.runner.completions import Completion


@pytest.fixture
def crashed():
    """The end of a task whose worker is gone."""
    future = SimpleNamespace(task_run_id=UUID(int=1))
    return Completion(future, "CRASHED", "Crashed", "KilledWorker: 4 workers died")


def test_what_crashed_is_told_though_prefects_server_is_away(crashed):
    with (
        temporary_settings({PREFECT_API_URL: "http://127.0.0.1:9/api"}),
        pytest.raises(TaskFailedError, match="score g00 f0 on judge failed: KilledWorker"),
    ):
        receipt_of(crashed, None, "score g00 f0", "judge")


@pytest.fixture
def proxy(monkeypatch):
    """The client of Prefect where a proxy answers for its server."""
    client = Mock()
    client.set_task_run_state.side_effect = ValueError("<html> is no answer")
    monkeypatch.setattr(completions, "get_client", lambda **_: nullcontext(client))
    return client


def test_what_crashed_is_told_though_a_proxy_answers_for_prefects_server(crashed, proxy):
    with pytest.raises(TaskFailedError, match="score g00 f0 on judge failed: KilledWorker"):
        receipt_of(crashed, None, "score g00 f0", "judge")
    assert proxy.set_task_run_state.called


def test_nothing_is_said_of_a_proxy_when_tasks_are_lost(proxy, monkeypatch):
    failed = []
    monkeypatch.setattr(threading, "excepthook", failed.append)
    before = {*threading.enumerate()}
    completions.mark_lost([UUID(int=1)])
    for thread in {*threading.enumerate()} - before:
        thread.join(60)
    assert comes_to(lambda: proxy.set_task_run_state.called)
    assert failed == []
