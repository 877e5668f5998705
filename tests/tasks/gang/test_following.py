"""A follower, whose leader may be on another host."""

import socket
from queue import SimpleQueue
from threading import current_thread

import pytest

from tasks.gang import following
from tasks.gang.channel import Channel
from tasks.gang.messages import Command, Join


def test_who_does_not_understand_the_leader_ends(monkeypatch):
    """It would wait for the next command, and the leader for its answer."""
    said = SimpleQueue()
    monkeypatch.setattr(following, "_exit", said.put)
    leader, follower = map(Channel, socket.socketpair())
    with leader, follower:
        following._Orders(follower)
        leader.send_bytes(b"ctasks.gang.messages\nLaterCommand\n.")
        assert "cannot be read: " in said.get(timeout=10)


def test_who_does_not_understand_how_to_join_ends(monkeypatch):
    """It would be a worker that follows nobody, of a gang that never comes about."""
    said = SimpleQueue()

    def end(why):
        said.put(why)
        raise SystemExit

    monkeypatch.setattr(following, "_exit", end)
    leader, follower = map(Channel, socket.socketpair())
    with leader, follower:
        leader.send_bytes(b"ctasks.gang.messages\nLaterJoin\n.")
        with pytest.raises(SystemExit):
            following._follow(follower, "127.0.0.1", said.put)
        assert said.get(timeout=10).startswith("what the leader of the gang says cannot be read: ")


def test_whose_leader_is_gone_before_it_said_anything_waits_for_another_one(monkeypatch):
    monkeypatch.setattr(following, "_exit", pytest.fail)
    leader, follower = map(Channel, socket.socketpair())
    with follower:
        leader.close()
        with pytest.raises(EOFError):
            following._follow(follower, "127.0.0.1", pytest.fail)


@pytest.mark.parametrize(
    "error", [ConnectionError("NCCL uses lo"), ValueError("NCCL uses lo")], ids=["far", "other"]
)
def test_who_cannot_join_says_why_and_ends(monkeypatch, tmp_path, error):
    """Its leader would know only that it did not come."""
    said = SimpleQueue()

    def end(why):
        said.put(why)
        if current_thread().name != "gang's orders":
            raise SystemExit

    def fail(*_):
        raise error

    monkeypatch.setattr(following, "_exit", end)
    monkeypatch.setattr(following, "form_group", fail)
    leader, follower = map(Channel, socket.socketpair())
    with leader, follower:
        leader.send(Join(rank=1, size=2, folder=tmp_path, near=(0, 1), store=None))
        with pytest.raises(SystemExit):
            following._follow(follower, "127.0.0.1", said.put)
        assert leader.receive() == "NCCL uses lo"
        assert said.get(timeout=10) == "the gang is not whole: NCCL uses lo"
    assert said.get(timeout=10).startswith("the leader of the gang is gone")  # its thread has ended


def test_whose_leader_is_gone_before_its_command_is_taken_ends(monkeypatch):
    """It would begin to do it, and wait for ever: a collective of NCCL ends with no connection."""
    said = SimpleQueue()
    monkeypatch.setattr(following, "_exit", said.put)
    leader, follower = map(Channel, socket.socketpair())
    with leader, follower:
        orders = following._Orders(follower)
        orders.done()
        assert not orders.is_busy
        leader.send(Command(1, "module:function", b"", ()))
        leader.close()
        assert said.get(timeout=10).startswith("the leader of the gang is gone")
