"""A flow run that was opened ahead shows its own time, not how long it waited."""

from threading import Event, Thread
from time import sleep

import pytest

from support.waiting import comes_to

pytestmark = pytest.mark.slow

WAITS_SECONDS = 1.0  # since Prefect says so


def test_an_iteration_that_waits_for_its_turn_is_not_running(prefect_backend, monkeypatch):
    from prefect import flow, get_client, runtime

    from flows.runtime.fleet.waiting import TURN, wait_for_turn

    monkeypatch.setattr("flows.runtime.fleet.waiting.TURN_SECONDS", 0.01)
    ids = []

    def end(turn: Event) -> None:
        with get_client(sync_client=True) as client:
            comes_to(lambda: client.read_flow_run(ids[0]).state.name == TURN)
        sleep(WAITS_SECONDS)
        turn.set()

    @flow
    def opened_ahead() -> int:
        ids.append(runtime.flow_run.id)
        turn = Event()
        (thread := Thread(target=end, args=(turn,))).start()
        wait_for_turn(turn, ids[0])
        thread.join()
        return 1

    assert opened_ahead() == 1
    with get_client(sync_client=True) as client:
        run = client.read_flow_run(ids[0])
        states = [state.name for state in client.read_flow_run_states(ids[0])]
    assert states == ["Pending", "Running", TURN, "Running", "Completed"]
    waited = (run.end_time - run.start_time).total_seconds()
    assert waited - run.total_run_time.total_seconds() >= WAITS_SECONDS


def test_one_whose_turn_it_is_says_nothing(prefect_backend):
    from flows.runtime.fleet.waiting import wait_for_turn

    turn = Event()
    turn.set()
    wait_for_turn(turn, None)
