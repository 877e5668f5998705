"""A follower, whose leader may be on another host."""

import socket
from queue import SimpleQueue

from tasks.gang import following
from tasks.gang.channel import Channel


def test_who_does_not_understand_the_leader_ends(monkeypatch):
    """It would wait for the next command, and the leader for its answer."""
    said = SimpleQueue()
    monkeypatch.setattr(following, "_exit", said.put)
    leader, follower = map(Channel, socket.socketpair())
    with leader, follower:
        following._Orders(follower)
        leader.send_bytes(b"ctasks.gang.messages\nLaterCommand\n.")
        assert "cannot be read: " in said.get(timeout=10)
