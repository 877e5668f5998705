"""Why a gang cannot be formed is said of the worker that it is true of."""

from collections import deque
from types import SimpleNamespace

import pytest

from tasks.cluster.calls import WorkerLostError
from tasks.cluster.cluster import QUIET
from tasks.gang import forming
from tasks.gang.forming import form_gang
from tasks.gang.messages import FAILED

LEADER, NEAR, FAR = "tcp://a:1", "tcp://b:1", "tcp://c:1"


@pytest.fixture
def workers(monkeypatch):
    """What each worker answers, of which all compute on the CPU."""
    answers = dict.fromkeys((LEADER, NEAR, FAR), "where it is to be called")

    def on_worker(client, address, function, *arguments):
        if isinstance(answers[address], Exception):
            raise answers[address]
        return answers[address]

    monkeypatch.setattr(forming, "on_workers", lambda *_, **__: dict.fromkeys(answers, ""))
    monkeypatch.setattr(forming, "on_worker", on_worker)
    monkeypatch.setattr(forming, "on_scheduler", lambda client, function, **settings: None)
    return answers


@pytest.mark.parametrize("address", [LEADER, NEAR, FAR])
def test_who_cannot_take_part_is_named(workers, address):
    form_gang(None, LEADER, [NEAR, FAR])
    workers[address] = OSError(28, "No space left on device")
    with pytest.raises(
        WorkerLostError,
        match=rf"^the worker at {address} cannot take part: \[Errno 28\] No space left on device$",
    ):
        form_gang(None, LEADER, [NEAR, FAR])


def test_who_said_nothing_but_is_heard_of_is_asked_to_take_part(workers, monkeypatch):
    """A GPU that fails says so where the model is loaded."""
    known = {LEADER: "", NEAR: ""}
    silent = set()
    monkeypatch.setattr(forming, "on_workers", lambda *_, **__: known)
    monkeypatch.setattr(forming, "silent_among", lambda client, asked, seconds: silent & {*asked})
    form_gang(None, LEADER, [NEAR, FAR])
    silent.add(FAR)
    with pytest.raises(WorkerLostError, match=rf"^the worker at {FAR} is silent$"):
        form_gang(None, LEADER, [NEAR, FAR])


def test_what_a_follower_told_is_known_however_many_gangs_are_formed_since():
    """A run's scheduler keeps few events, whose number is that of all gangs' followers."""
    events = deque(maxlen=QUIET["distributed.admin.low-level-log-length"])
    scheduler = SimpleNamespace(
        get_events=lambda topic: tuple(events),
        log_event=lambda topic, event: events.append((0.0, event)),
    )
    scheduler.log_event(FAILED, {"address": FAR, "text": "it has not enough memory"})
    for number in range(20):
        forming._forget_told_by([f"tcp://d:{number}"], scheduler)
    assert forming._told_by([NEAR, FAR], scheduler) == "it has not enough memory"
    forming._forget_told_by([NEAR, FAR], scheduler)
    assert forming._told_by([NEAR, FAR], scheduler) is None
