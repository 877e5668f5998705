"""A controller that remembers what it heard and said in the last three iterations."""

from collections import deque
from collections.abc import Callable, Collection, Iterable
from time import time
from typing import Final

from digen_core.control.controller import Controller
from digen_core.control.protocol import Event, FinishIteration, Instruction
from digen_core.eventlog.entries import Asked, Handled, Log, Mark, Segment
from digen_core.eventlog.under_way import after

KEPT_SEGMENTS: Final = 3
"""The iteration that is trained, and two before: one that is open may have begun as long ago."""
MOST_EVENTS: Final = 50_000


class Recorder:
    """Stands before a controller. What is kept is bounded: a segment is an iteration's events.

    Nothing is written or encoded here; an entry holds the objects that were passed.
    """

    def __init__(
        self,
        controller: Controller,
        clock: Callable[[], float] = time,
        most_events: int = MOST_EVENTS,
    ) -> None:
        """Begin where a controller is.

        Args:
            controller: that is asked by nobody else.
            clock: the seconds now.
            most_events: of a segment: an iteration that has more is cut.
        """
        self._controller = controller
        self._clock = clock
        self._most_events = most_events
        self._segments: deque[Segment] = deque(maxlen=KEPT_SEGMENTS)
        self._begin(())

    @property
    def holder(self) -> str:
        """The device that holds the optimizer's state."""
        return self._controller.holder

    def survives(self, lost: Collection[str]) -> bool:
        """Say whether the run can go on without devices: somebody has the optimizer's state."""
        return self._controller.survives(lost)

    @property
    def leaving(self) -> list[str]:
        """The devices that are to leave and are still needed."""
        return self._controller.leaving

    def may_leave(self, name: str) -> bool:
        """Say whether others have the roles of a device, and can have the optimizer's state."""
        return self._controller.may_leave(name)

    def start(self) -> list[Instruction]:
        """Give every device the version that the run begins with."""
        instructions, now = self._controller.start(), self._clock()
        self._segments.clear()
        self._begin(Asked(now, instruction) for instruction in instructions)
        return instructions

    def handle(self, event: Event) -> list[Instruction]:
        """Advance by one event, as the controller does.

        Raises:
            ControllerError: the event does not fit; it is the last one of the log.
        """
        segment = self._segments[-1]
        if len(segment.handled) >= self._most_events:
            segment = self._next()
        now = self._clock()
        try:
            instructions = self._controller.handle(event)
        except Exception as error:
            segment.handled.append(Handled(now, event, error=str(error) or type(error).__name__))
            raise
        segment.handled.append(Handled(now, event, tuple(instructions)))
        if any(isinstance(do, FinishIteration) for do in instructions):
            self._next()
        return instructions

    def log(self, run: str, why: str) -> Log:
        """Return what is remembered.

        Args:
            run: its name.
            why: somebody wants to know, such as "the run failed: ...".
        """
        kept = tuple(Segment(part.mark, list(part.handled)) for part in self._segments)
        return Log(run, self._clock(), why, kept)

    def _next(self) -> Segment:
        return self._begin(after(self._segments[-1]))

    def _begin(self, under_way: Iterable[Asked]) -> Segment:
        self._controller.round_anew()
        mark = Mark(self._clock(), self._controller.snapshot(), tuple(under_way))
        self._segments.append(Segment(mark, []))
        return self._segments[-1]
