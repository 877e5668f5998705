"""The entries of an event log: from where on it can be replayed, and what was heard and said."""

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from digen_core.control.protocol import Event, Instruction
from digen_core.control.snapshot import Snapshot
from digen_core.eventlog.tagged import Tagged

Time = Annotated[float, Field(ge=0, le=2.5e11)]
"""Seconds since the epoch, which can be shown as a date."""


@dataclass(frozen=True, slots=True)
class Asked:
    """An instruction, and when it was given."""

    time: Time
    instruction: Annotated[Instruction, Tagged()]


@dataclass(frozen=True, slots=True)
class Mark:
    """A moment from which a new controller can go on."""

    time: Time
    snapshot: Snapshot
    under_way: tuple[Asked, ...] = ()  # the first given first


@dataclass(frozen=True, slots=True)
class Handled:
    """An event, when the controller heard of it, and what it said."""

    time: Time
    event: Annotated[Event, Tagged()]
    instructions: tuple[Annotated[Instruction, Tagged()], ...] = ()
    error: str = ""  # that it raised in place of them: then this is the last entry


@dataclass(frozen=True, slots=True)
class Segment:
    """A mark, and what came after it."""

    mark: Mark
    handled: list[Handled]


@dataclass(frozen=True, slots=True)
class Log:
    """The newest part of what a run's controller heard and said."""

    run: str
    written: Time
    why: str  # it was written
    segments: tuple[Segment, ...]  # one at least; each goes on where the one before ends
