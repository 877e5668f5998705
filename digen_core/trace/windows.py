"""Stretches of time, and which of them an iteration has for itself."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from digen_core.records import Span


@dataclass(frozen=True, slots=True)
class Window:
    """A stretch of time, [started, ended) in seconds."""

    started: float
    ended: float

    @property
    def seconds(self) -> float:
        """How long it is."""
        return self.ended - self.started

    def __contains__(self, moment: float) -> bool:
        """Whether a moment is in it."""
        return self.started <= moment < self.ended

    def overlaps(self, span: Span) -> bool:
        """Return whether some of a span's time is in it."""
        return span.started < self.ended and span.ended > self.started


class Union:
    """The time that is in any of some windows."""

    def __init__(self, windows: Iterable[Window] = ()) -> None:
        self._edges: list[float] = []  # of disjoint windows: start, end, start, end, ...
        for window in sorted(windows, key=lambda window: window.started):
            if window.seconds <= 0:
                continue
            if self._edges and window.started <= self._edges[-1]:
                self._edges[-1] = max(self._edges[-1], window.ended)
            else:
                self._edges += [window.started, window.ended]

    def __contains__(self, moment: float) -> bool:
        """Whether a moment is in it."""
        return bisect_right(self._edges, moment) % 2 == 1

    def edges(self, window: Window) -> list[float]:
        """Return where it begins and ends inside a window."""
        first, last = (bisect_left(self._edges, t) for t in (window.started, window.ended))
        return self._edges[first:last]


def extent(spans: Iterable[Span]) -> Window:
    """Return the time from the first start to the last end of some spans.

    Raises:
        ValueError: there is no span.
    """
    spans = list(spans)
    if not spans:
        raise ValueError("no spans, so no extent.")
    return Window(min(s.started for s in spans), max(s.ended for s in spans))


def iteration_windows(spans: Sequence[Span]) -> dict[int, Window]:
    """Return the time that each iteration took from the one before it, in order.

    An iteration's window begins when its first task was asked for, or, where two overlap, when the
    iteration before it was over; it ends with its last span. So windows never overlap, and the time
    between two (an evaluation, a checkpoint) is in none.

    A push that names no iteration (-1) is of the one whose optimizer step was the last before it; a
    switch is of the device's next task.
    """
    parts: dict[int, list[Span]] = {}
    for iteration, span in _with_iterations(spans):
        if iteration >= 0:
            parts.setdefault(iteration, []).append(span)
    windows, before = {}, float("-inf")
    for iteration, own in sorted(parts.items()):
        ended = max(before, max(span.ended for span in own))
        windows[iteration] = Window(max(before, min(span.queued for span in own)), ended)
        before = ended
    return windows


def _with_iterations(spans: Iterable[Span]) -> list[tuple[int, Span]]:
    """Return the spans by their start, each with the iteration that it serves."""
    found = []
    last_step, waiting = -1, dict[str, list[Span]]()  # switches, by device
    for span in sorted(spans, key=lambda span: span.started):
        iteration = span.iteration
        if span.kind == "step":
            last_step = iteration
        if iteration < 0 and span.kind == "push":
            iteration = last_step
        if iteration < 0 and span.kind == "switch":
            waiting.setdefault(span.device, []).append(span)
            continue
        if span.kind != "push":
            found += [(iteration, switch) for switch in waiting.pop(span.device, [])]
        found.append((iteration, span))
    return found
