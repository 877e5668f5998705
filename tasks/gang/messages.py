"""The messages between a gang's leader and its followers, over a channel to each follower."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from digen_core.errors import UserError
from tasks.receipts import Received


@dataclass(frozen=True, slots=True)
class Done:
    """A follower's answer where it has done a command."""

    received: list[Received]  # what other workers sent to it for that


FAILED: Final = "digen-gang-failed"
"""Topic of Dask's events under which a follower tells, by its address, what a user has to change:
its leader may not hear it before the run misses the follower. Without a text it is in another gang
since."""

Answer = UserError | FloatingPointError | str | Done
"""Of a follower: why it failed, as an error of the user's or of numbers, or in words; or `Done`."""


class GangBrokenError(Exception):
    """A member of a gang failed or is gone; the gang has to be formed again.

    It is no error of what was computed, such as of memory, which may be tried again with less.
    """


@dataclass(frozen=True, slots=True)
class Join:
    """How a member joins: the first thing that a follower hears."""

    rank: int
    size: int
    folder: Path  # of the gang, on the leader's host
    near: tuple[int, ...]
    """Ranks of the members on the leader's host, its own first: they have its folder."""
    store: tuple[str, int] | None
    """Host and port at which the members find each other; None: all are near, and do so by a file
    of the folder."""


@dataclass(frozen=True, slots=True)
class Command:
    """A call that every member makes."""

    number: int
    function: str  # as module:name
    arguments: bytes | None  # pickled; None: they are in a file of the folder
    dropped: tuple[int, ...]  # parts that the leader has let go of


def arguments_file(folder: Path, number: int) -> Path:
    """Return where a command's arguments are, if they are many."""
    return folder / f"arguments-{number}"
