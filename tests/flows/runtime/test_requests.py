"""What is asked of a run in Prefect, as its loop sees it."""

import threading
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from queue import Queue
from threading import Event
from types import SimpleNamespace
from uuid import uuid4

import pytest
from httpx import ConnectError
from prefect.client.schemas.objects import FlowRun
from prefect.exceptions import Pause
from prefect.states import Cancelled, Cancelling, Completed, Failed, Paused, Running, Suspended

from flows.runtime import conductor
from flows.runtime import requests as control
from flows.runtime.requests import Control, RunCancelledError, ending_as_asked


class Server:
    """Takes states as a client does."""

    def __init__(self):
        self.states = []

    def set_flow_run_state(self, flow_run_id, state, force):
        assert force
        self.states.append(state)


@pytest.fixture
def see():
    """Return a function that shows states to a control, one after the other."""
    server, nudges = Server(), []
    seen = Control(nudges.append)

    def show(*states, deployment_id=None):
        for state in states:
            run = FlowRun(flow_id=uuid4(), deployment_id=deployment_id, state=state)
            seen.see(run, server)
        return seen, server.states, nudges

    return show


def test_a_run_that_runs_is_left_alone(see):
    seen, states, nudges = see(Running(), Running())
    seen.check()
    assert not seen.held
    assert states == nudges == []


def test_a_pause_holds_the_run_until_it_is_resumed(see):
    seen, _, nudges = see(Running(), Paused(), Paused())
    assert seen.held
    assert len(nudges) == 1
    see(Running())
    assert not seen.held
    assert len(nudges) == 2
    seen.check()


def test_an_answer_that_is_none_of_prefects_is_asked_for_again(monkeypatch):
    """As where a proxy answers for a server that is away: a pause after it was not heard of."""
    paused = FlowRun(flow_id=uuid4(), state=Paused())
    answers = iter([ValueError("<html> is no flow run")])

    class Client(Server):
        def read_flow_run(self, flow_run_id):
            found = next(answers, paused)
            if isinstance(found, Exception):
                raise found
            return found

    monkeypatch.setattr(control, "get_client", lambda **_: nullcontext(Client()))
    monkeypatch.setattr(control, "POLL_SECONDS", 0.01)
    heard = Queue()
    seen = Control(heard.put)
    with control.following(seen, uuid4()):
        heard.get(timeout=60)
    assert seen.held


def test_an_answer_that_comes_when_the_run_is_over_stops_nothing(monkeypatch):
    """By then the flow run is Completed; a command that is told to stop would be killed soon."""
    asked, answers, stops = Event(), Event(), []

    class Client(Server):
        def read_flow_run(self, flow_run_id):
            asked.set()
            answers.wait(60)
            return FlowRun(flow_id=uuid4(), state=Completed())

    monkeypatch.setattr(control, "get_client", lambda **_: nullcontext(Client()))
    monkeypatch.setattr(control, "POLL_SECONDS", 0.01)
    with control.following(Control(on_stop=stops.append), uuid4()):
        assert asked.wait(60)
    (thread,) = [own for own in threading.enumerate() if own.name == "control"]
    answers.set()
    thread.join(60)
    assert stops == []


def test_the_uis_pause_of_a_run_without_deployment_can_be_resumed(see):
    seen, states, _ = see(Suspended(timeout_seconds=300))
    (state,) = states
    assert seen.held
    assert (state.name, state.state_details.pause_reschedule) == ("Paused", False)
    assert state.state_details.pause_timeout > datetime.now(UTC) + timedelta(seconds=250)
    seen.reach_boundary("paused")  # the process stays


def test_a_pause_for_some_time_ends_by_itself(see):
    past = datetime.now(UTC) - timedelta(seconds=1)
    seen, states, _ = see(Paused(pause_expiration_time=past))
    assert [state.name for state in states] == ["Running"]
    assert not seen.held


@pytest.mark.parametrize("state", [Cancelling(), Cancelled(), Failed(), Completed()])
def test_a_run_that_somebody_ended_stops(see, state):
    seen, _, nudges = see(Running(), state)
    assert len(nudges) == 1
    with pytest.raises(RunCancelledError, match="in Prefect"):
        seen.check()


def test_a_cancel_is_left_to_the_prefect_worker_at_first(see, monkeypatch):
    monkeypatch.setenv("PREFECT__ENABLE_CANCELLATION_AND_CRASHED_HOOKS", "false")
    seen, _, _ = see(Cancelling(), Cancelling())
    seen.check()
    monkeypatch.setattr(control, "SIGNAL_SECONDS", 0.0)
    see(Cancelling())
    with pytest.raises(RunCancelledError):
        seen.check()


def test_a_suspended_run_that_another_process_took_over_stops(see):
    seen, states, _ = see(Suspended(), Running(), deployment_id=uuid4())
    assert states == []
    with pytest.raises(RunCancelledError, match="another process"):
        seen.check()


def test_a_server_that_is_away_when_a_run_is_suspended_is_told_later(see, monkeypatch):
    """Prefect's client asks a server only once to which it has not been connected before."""
    failures = iter([ConnectError("refused"), ValueError("<html> is no answer")])

    class Client(Server):
        def set_flow_run_state(self, flow_run_id, state, force):
            if error := next(failures, None):
                raise error
            super().set_flow_run_state(flow_run_id, state, force)

    client = Client()
    monkeypatch.setattr(control, "get_client", lambda **_: nullcontext(client))
    seen, _, _ = see(Suspended(), deployment_id=uuid4())
    for _ in range(2):
        seen.reach_boundary("paused after iteration 2")
    with pytest.raises(Pause):
        seen.reach_boundary("paused after iteration 2")
    assert [state.name for state in client.states] == ["Suspended"]


@pytest.mark.parametrize(
    ("limit_reached", "num_begun"),
    [(None, 1), ("max_minutes (5) have passed", 2)],
    ids=["goes on", "its limit is reached, and an iteration had begun ahead"],
)
def test_a_run_that_is_held_reaches_its_boundary_until_that_is_told(
    see, monkeypatch, limit_reached, num_begun
):
    said, boundaries = [], []
    seen, _, _ = see(Paused())
    turns = iter((Paused(), Paused(), Running()))
    progress = SimpleNamespace(num_iterations=1, paused=lambda seconds: None)
    held = SimpleNamespace(
        _run=SimpleNamespace(control=seen, progress=progress),
        limit_reached=limit_reached,
        _first=0,
        _num_offered=num_begun,
        _published={0},
        _memory=SimpleNamespace(stir=lambda: None),
        _advance=lambda: see(next(turns)),
    )
    monkeypatch.setattr(seen, "reach_boundary", boundaries.append)
    monkeypatch.setattr(conductor, "say", said.append)
    conductor.Conductor._hold(held)
    assert boundaries == ["paused after iteration 1"] * 3
    assert said == ["paused after iteration 1; resume it in Prefect", "resumed"]


def test_a_run_that_is_suspended_keeps_its_last_version_first(see, monkeypatch):
    """Where not each iteration has a checkpoint, it would go on from one before."""
    happened = []
    seen, _, _ = see(Suspended(), deployment_id=uuid4())
    run = SimpleNamespace(control=seen, progress=SimpleNamespace(num_iterations=1))
    held = SimpleNamespace(_run=run, limit_reached=None, _first=0, _num_offered=1, _published={0})

    def reach(text):
        happened.append(text)
        raise Pause(state=Suspended())

    monkeypatch.setattr(seen, "reach_boundary", reach)
    monkeypatch.setattr(conductor, "keep_last", happened.append)
    with pytest.raises(Pause):
        conductor.Conductor._hold(held)
    assert happened == [run, "paused after iteration 1"]


def test_a_flow_that_is_stopped_ends_as_cancelled():
    def stopped(error):
        raise error

    flow = ending_as_asked(stopped)
    assert flow(RunCancelledError("because")).message == "because"
    assert flow(KeyboardInterrupt()).is_cancelled()
    with pytest.raises(ValueError, match="bad"):
        flow(ValueError("bad"))
