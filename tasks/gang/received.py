"""What other workers sent to this process, kept until the receipt of a task says so.

In a gang the receipt is the leader's: each follower's answer has what was sent to that one.
"""

from collections.abc import Iterable

from tasks.receipts import Received

_received: list[Received] = []


def note_received(found: Iterable[Received]) -> None:
    """Note what was sent to this process, or to a follower of the gang that it leads."""
    _received.extend(found)


def take_received() -> list[Received]:
    """Return what was noted since the last call."""
    found = list(_received)
    _received.clear()
    return found
