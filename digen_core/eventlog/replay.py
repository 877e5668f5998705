"""Give a new controller the events of a log, and compare what it says with what was said."""

from dataclasses import dataclass

from digen_core.control.controller import Controller
from digen_core.control.protocol import Event, Instruction
from digen_core.control.snapshot import Snapshot
from digen_core.eventlog.entries import Handled, Log

Said = tuple[Instruction, ...] | str  # or why it could say nothing


@dataclass(frozen=True, slots=True)
class Difference:
    """The first place at which the new controller differs from the run's."""

    handled: Handled | None  # None: all was said alike, and yet the state at a mark is another one
    said: Said  # by the new one


@dataclass(frozen=True, slots=True)
class Replayed:
    """How a replay went."""

    end: Snapshot  # after the last event that it took
    num_events: int  # that it took, and said the same to
    difference: Difference | None


def replay(log: Log) -> Replayed:
    """Replay a log from its first mark to its end, or to where the new controller differs."""
    controller, number = Controller.restored(log.segments[0].mark.snapshot), 0
    for segment in log.segments:
        controller.round_anew()
        if controller.snapshot() != segment.mark.snapshot:
            return Replayed(controller.snapshot(), number, Difference(None, ()))
        for handled in segment.handled:
            said = _said(controller, handled.event)
            failed = isinstance(said, str)
            if failed != bool(handled.error) or (not failed and said != handled.instructions):
                return Replayed(controller.snapshot(), number, Difference(handled, said))
            number += 1
    return Replayed(controller.snapshot(), number, None)


def _said(controller: Controller, event: Event) -> Said:
    try:
        return tuple(controller.handle(event))
    except Exception as error:  # whatever the event, which may have been tampered with, breaks
        return f"{type(error).__name__}: {error}"
