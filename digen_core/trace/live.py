"""The spans of a run while it works: of the iterations that are open or were the last to end."""

from dataclasses import replace
from threading import Lock
from typing import Final

from digen_core.records import Span
from digen_core.trace.kinds import READYING

KEPT: Final = 4
"""Iterations before one that is published: their records may still wait to be published, too."""


class LiveTrace:
    """What devices do and did; may be used from several threads."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._ended: list[Span] = []
        self._running: dict[tuple[int, str, str], Span] = {}  # in the order they were asked for

    def begin(self, span: Span) -> None:
        """Note a task that was asked for; when it starts is not known yet."""
        with self._lock:
            self._running[_key(span)] = span

    def end(self, asked: Span, done: Span) -> None:
        """Note that a task ended.

        Args:
            asked: as it was begun.
            done: with its times, and the device that it ran on.
        """
        with self._lock:
            self._running.pop(_key(asked), None)
            self._ended.append(done)

    def forget(self, asked: Span) -> None:
        """Wait no more for a task."""
        with self._lock:
            self._running.pop(_key(asked), None)

    def forget_from(self, iteration: int) -> None:
        """Wait no more for any task, and forget those of iterations that are done again.

        Args:
            iteration: the first of these.
        """
        with self._lock:
            self._running.clear()
            self._ended = [s for s in self._ended if s.iteration < iteration]

    def around(self, iteration: int, now: float) -> list[Span]:
        """Return what the window of an iteration that has ended shares with its neighbours.

        The first task that a device has not answered for is taken to run since its last one ended:
        else a long task of the next iteration would be idle time of this one.

        Args:
            iteration: spans long before it are dropped for good.
            now: when the unfinished tasks are said to end.
        """
        with self._lock:
            self._ended = [s for s in self._ended if s.iteration >= iteration - KEPT]
            near = [s for s in self._ended if s.iteration >= iteration - 1]
            running = [s for s in self._running.values() if s.kind not in READYING]
        free = {
            s.device: s.ended for s in sorted(near, key=lambda s: s.ended) if s.kind not in READYING
        }
        for span in running:
            started = max(span.queued, free.get(span.device, span.queued))
            if started < now:
                near.append(replace(span, started=started, ended=now))
            free[span.device] = now
        return near


def _key(span: Span) -> tuple[int, str, str]:
    return span.iteration, span.task, span.device
