"""The entries of an event log: from where on it can be replayed, and what was heard and said."""

from dataclasses import dataclass
from typing import Annotated

from digen_core.control.protocol import Event, Instruction
from digen_core.control.snapshot import Snapshot
from digen_core.eventlog.tagged import Tagged


@dataclass(frozen=True, slots=True)
class Asked:
    """An instruction, and when it was given, in seconds since the epoch."""

    time: float
    instruction: Annotated[Instruction, Tagged()]


@dataclass(frozen=True, slots=True)
class Mark:
    """A moment from which a new controller can go on."""

    time: float
    snapshot: Snapshot
    under_way: tuple[Asked, ...] = ()  # the first given first


@dataclass(frozen=True, slots=True)
class Told:
    """An event, when the controller heard of it, and what it said."""

    time: float
    event: Annotated[Event, Tagged()]
    instructions: tuple[Annotated[Instruction, Tagged()], ...] = ()
    error: str = ""  # that it raised in place of them: then this is the last entry


@dataclass(frozen=True, slots=True)
class Segment:
    """A mark, and what came after it."""

    mark: Mark
    told: list[Told]


@dataclass(frozen=True, slots=True)
class Log:
    """The newest part of what a run's controller heard and said."""

    run: str
    written: float  # seconds since the epoch
    why: str  # it was written
    segments: tuple[Segment, ...]  # one at least; each goes on where the one before ends
