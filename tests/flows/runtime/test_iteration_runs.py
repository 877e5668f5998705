"""The flow runs of iterations: while Prefect's server is away, their ends hold no workers."""

from queue import SimpleQueue
from threading import Event
from types import SimpleNamespace

import pytest

from flows.runtime.iterations import runs as module
from flows.runtime.iterations.open_iteration import OpenIteration
from flows.runtime.iterations.round import Round
from flows.runtime.iterations.runs import IterationRuns


@pytest.fixture
def run():
    config = SimpleNamespace(num_iterations=3)
    return SimpleNamespace(config=config, inbox=SimpleQueue(), when_free=[])


@pytest.fixture
def told(monkeypatch):
    """Set when Prefect's server takes the end of the flow run of an iteration."""
    told = Event()
    monkeypatch.setattr(module, "on_cluster", lambda run, flow, index: told.wait(60))
    monkeypatch.setattr(module, "OPENING_SECONDS", 0.1)
    return told


def test_ends_that_cannot_be_told_are_left_to_the_end_of_the_run(run, told, monkeypatch):
    monkeypatch.setattr(module, "api_answers", lambda: False)
    runs = IterationRuns(run, 0)
    runs.open_until(0)
    runs.close()
    assert not told.is_set()
    (join,) = run.when_free
    late = OpenIteration(Round(1, []), None, 1)
    run.inbox.put(late)  # it was asked for before the server went away
    told.set()
    join()
    assert late.outcome.result() is None
    assert run.inbox.empty()  # whoever is next on the workers hears nothing of it


def test_a_server_that_answers_is_waited_for(run, told, monkeypatch):
    asked = []

    def answers():
        asked.append(True)
        if len(asked) == 2:
            told.set()
        return True

    monkeypatch.setattr(module, "api_answers", answers)
    runs = IterationRuns(run, 0)
    runs.open_until(0)
    runs.close()
    assert told.is_set()
    assert run.when_free == []
