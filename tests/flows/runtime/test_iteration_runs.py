"""The flow runs of iterations: while Prefect's server is away, their ends hold no workers."""

from contextlib import nullcontext
from dataclasses import replace
from importlib import import_module
from queue import SimpleQueue
from threading import Event
from types import SimpleNamespace

import pytest

from digen_core.transport.trajectories import folder_of
from flows.runtime.conductor import Conductor
from flows.runtime.context import registered
from flows.runtime.iterations import runs as module
from flows.runtime.iterations.open_iteration import OpenIteration
from flows.runtime.iterations.round import Round
from flows.runtime.iterations.runs import IterationRuns
from support.contexts import run_context

iteration_module = import_module("flows.runtime.iterations.iteration")


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


def test_the_end_of_a_run_that_somebody_stopped_asks_at_once_whether_it_is_away(
    run, told, monkeypatch
):
    monkeypatch.setattr(module, "OPENING_SECONDS", 600.0)
    monkeypatch.setattr(module, "api_answers", lambda: False)
    runs = IterationRuns(run, 0)
    runs.open_until(0)
    runs.close(hurry=True)
    assert run.when_free == [runs.join]  # it has not waited for the end
    told.set()


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


def test_a_flow_run_that_opens_when_the_run_has_gone_back_ends(run):
    """It was asked for before, while Prefect's server was away; else an iteration would lack."""
    runs = IterationRuns(run, 4)
    late, *opened = (OpenIteration(Round(index, []), None, 1) for index in (7, 4, 5))
    assert not runs.take(late)
    assert late.outcome.result() is None
    assert all(map(runs.take, opened))
    assert runs.num_opened == 6


def test_what_is_kept_of_an_iteration_stays_when_its_flow_run_is_opened_once_more(
    tmp_path, monkeypatch
):
    """As by a thread that waited for Prefect's server, when another one has gone on without."""
    conductor = SimpleNamespace(
        _run=SimpleNamespace(run_dir=tmp_path),
        _runs=IterationRuns(SimpleNamespace(), 2),
        _opened={},
        _executor=SimpleNamespace(encode_ahead=lambda opened: None),
    )
    inbox = SimpleNamespace(put=lambda opened: Conductor._on_flow_run(conductor, opened))
    kept = folder_of(tmp_path, 2) / "g00-f0-t00.safetensors"
    kept.parent.mkdir(parents=True)
    (kept.parent / "g00-f1-t00.safetensors").touch()  # of a process that was killed

    def work(*of):
        kept.parent.mkdir(exist_ok=True)
        kept.touch()
        conductor._opened[2].abandon()

    stubs = {"Completions": lambda inbox: nullcontext(), "wait_for_turn": work}
    for name, stub in {**stubs, "round_of": lambda *of: Round(2, [])}.items():
        monkeypatch.setattr(iteration_module, name, stub)
    with registered(replace(run_context(tmp_path), inbox=inbox)):
        iteration_module.iteration.fn("run", 2)
        assert list(kept.parent.iterdir()) == [kept]
        monkeypatch.setattr(iteration_module, "wait_for_turn", lambda *of: None)
        iteration_module.iteration.fn("run", 2)
    assert list(kept.parent.iterdir()) == [kept]


def test_workers_need_not_keep_trajectories_while_a_record_is_published(tmp_path, monkeypatch):
    """A checkpoint may take minutes; the next iteration has its own trajectories then."""
    opened, held = [], []

    def work(*of):
        opened[0].segments["fragment"] = ["trajectory"]
        opened[0].outcome.set_result("how it ended")

    record = SimpleNamespace(spans=[], crossings=[])
    recorder = SimpleNamespace(record=lambda *of: record, is_barren=False)
    stubs = {
        "Completions": lambda inbox: nullcontext(),
        "round_of": lambda *of: Round(2, []),
        "IterationRecorder": lambda *of: recorder,
        "wait_for_turn": work,
        "publish_iteration": lambda *of: held.extend(opened[0].segments),
        "notify_of_clipping": lambda *of: None,
    }
    for name, stub in stubs.items():
        monkeypatch.setattr(iteration_module, name, stub)
    with registered(replace(run_context(tmp_path), inbox=SimpleNamespace(put=opened.append))):
        iteration_module.iteration.fn("run", 2)
    assert opened[0].published.result()
    assert held == []
