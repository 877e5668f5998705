"""The messages between a gang's leader and its followers, over a Unix socket for each follower."""

from dataclasses import dataclass
from pathlib import Path

from digen_core.errors import UserError
from tasks.receipts import Received


@dataclass(frozen=True, slots=True)
class Done:
    """A follower's answer where it has done a command."""

    received: list[Received]  # what other workers sent to it for that


Answer = UserError | FloatingPointError | str | Done
"""Of a follower: why it failed, as an error of the user's or of numbers, or in words; or `Done`."""


class GangBrokenError(RuntimeError):
    """A member of a gang failed or is gone; the gang has to be formed again."""


@dataclass(frozen=True, slots=True)
class Join:
    """The first thing that a follower hears."""

    folder: Path  # of the gang
    rank: int
    size: int


@dataclass(frozen=True, slots=True)
class Command:
    """A call that every member makes."""

    number: int
    function: str  # as module:name
    arguments: bytes | None  # pickled; None: they are in a file
    dropped: tuple[int, ...]  # parts that the leader has let go of


def arguments_file(folder: Path, number: int) -> Path:
    """Return where a command's arguments are, if they are many."""
    return folder / f"arguments-{number}"
