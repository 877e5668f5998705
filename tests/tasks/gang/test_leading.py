"""A leader that waits for a follower in a collective that would never end, as those of NCCL."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from threading import Event

import pytest

from digen_core.errors import UserError
from support.waiting import comes_to
from tasks.gang import leading
from tasks.gang.leading import Leading
from tasks.gang.meeting import Awaited, Place
from tasks.gang.messages import Done, GangBrokenError

KEY = bytes(32)
LATE = object()
"""In place of an answer: the follower waits for another one, in a collective that never ends."""


class Stuck:
    """What a leader does: it waits in a kernel that only an abort of its group ends."""

    def __init__(self, monkeypatch) -> None:
        self.is_there, self.is_aborted = Event(), Event()
        self.raised: Exception | None = None
        for name in ("form_unless", "leave_group"):
            monkeypatch.setattr(leading, name, lambda *_: None)
        self.hidden = 0  # times that the group is not to be seen
        monkeypatch.setattr(leading, "abort_group", self._abort)
        monkeypatch.setattr(leading, "AGAIN_SECONDS", 0.01)

    def _abort(self, group) -> bool:
        self.hidden -= 1
        if self.hidden < 0:
            self.is_aborted.set()
        return self.hidden < 0

    def wait(self) -> str:
        self.is_there.set()
        assert self.is_aborted.wait(10), "nobody gets it out"
        if self.raised is not None:
            raise self.raised
        return "nonsense"


@pytest.fixture
def stuck(monkeypatch):
    return Stuck(monkeypatch)


@pytest.fixture
def place(tmp_path):
    return Place("127.0.0.1", "127.0.0.1", None, tmp_path)


@pytest.fixture
def followers(place):
    """Two followers, which answer as they are told."""
    places = [Awaited(place, "127.0.0.1", KEY) for _ in range(2)]
    with ThreadPoolExecutor() as pool:
        channels = [pool.submit(place.meet) for place in places]
        yield [place.address for place in places], channels


def answer_when_there(stuck, channels, answers):
    for channel, answer in zip(channels, answers, strict=True):
        follower = channel.result(10)
        assert follower.receive().size == 3
        follower.receive()  # the command
        assert stuck.is_there.wait(10)
        with suppress(OSError):  # the leader has heard enough of the one before
            match answer:
                case _ if answer is LATE:
                    pass
                case None:
                    follower.close()
                case bytes():
                    follower.send_bytes(answer)
                case _:
                    follower.send(answer)


@pytest.mark.parametrize(
    ("answers", "text"),
    [
        ([Done([]), "ValueError: what went wrong"], "member 2 failed: ValueError: what went wrong"),
        ([None, Done([])], "member 1 is gone"),
        ([Done([]), b"cnowhere\nNothing\n."], "member 2 failed: what it says cannot be read"),
        ([Done([]), FloatingPointError("a loss is NaN")], "a loss is NaN"),
        ([UserError("it is too small"), Done([])], "it is too small"),
        ([LATE, "ValueError: what went wrong"], "member 2 failed: ValueError: what went wrong"),
        ([LATE, None], "member 2 is gone"),
    ],
    ids=["failed", "gone", "unreadable", "nonfinite", "user", "stuck", "stuck-gone"],
)
@pytest.mark.parametrize(
    "raised",
    [None, FloatingPointError("nonsense"), UserError("nonsense"), RuntimeError("nonsense")],
    ids=["returns", "nonfinite", "user", "raises"],
)
def test_it_is_told_why_whatever_it_makes_of_nonsense(
    stuck, followers, place, tmp_path, answers, text, raised
):
    addresses, channels = followers
    stuck.raised = raised
    leader = Leading(tmp_path, place, addresses, KEY)
    with ThreadPoolExecutor() as pool:
        told = pool.submit(answer_when_there, stuck, channels, answers)
        kind = next((type(a) for a in answers if isinstance(a, Exception)), GangBrokenError)
        with pytest.raises(kind, match=text):
            leader.call(stuck.wait)
        told.result(10)
    with pytest.raises(GangBrokenError, match="broken before"):
        leader.call(stuck.wait)


def test_a_group_that_is_not_there_yet_is_aborted_when_it_is(stuck, followers, place, tmp_path):
    addresses, channels = followers
    stuck.hidden = 5
    leader = Leading(tmp_path, place, addresses, KEY)
    with ThreadPoolExecutor() as pool:
        told = pool.submit(answer_when_there, stuck, channels, [None, LATE])
        with pytest.raises(GangBrokenError, match="member 1 is gone"):
            leader.call(stuck.wait)
        told.result(10)


def test_who_is_gone_while_nothing_is_done_is_noticed_before_the_next_command(
    stuck, followers, place, tmp_path, monkeypatch
):
    """Over TCP the command may be sent to one that is gone, without an error."""
    addresses, channels = followers
    leader = Leading(tmp_path, place, addresses, KEY)
    stuck.is_there.set()
    with ThreadPoolExecutor() as pool:
        told = pool.submit(answer_when_there, stuck, channels, [Done([]), Done([])])
        assert leader.call(lambda: 7) == 7
        told.result(10)
    channels[1].result().close()
    assert comes_to(lambda: leader._is_broken, 10)
    monkeypatch.setattr(leader, "_post", lambda *_: None)
    with pytest.raises(GangBrokenError, match="member 2 is gone"):
        leader.call(pytest.fail, "it would wait for ever")
    assert not stuck.is_aborted.is_set()


def test_followers_that_leave_with_their_leader_abort_nothing(stuck, followers, place, tmp_path):
    addresses, channels = followers
    leader = Leading(tmp_path, place, addresses, KEY)
    with ThreadPoolExecutor() as pool:
        stuck.is_there.set()
        told = pool.submit(answer_when_there, stuck, channels, [Done([]), Done([])])
        assert leader.call(lambda: 7) == 7
        told.result(10)
    leader.end()
    for channel in channels:
        with pytest.raises((EOFError, OSError)):
            channel.result().receive()
    assert not stuck.is_aborted.is_set()
