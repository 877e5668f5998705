"""Iterations that are over: their flow runs publish their records and end, one after the other."""

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, wait
from time import monotonic
from typing import Final

from flows.runtime.iterations.open_iteration import OpenIteration
from flows.runtime.iterations.round import Ended

SETTLE_SECONDS: Final = 0.1
"""A finished flow run ends that much later: what it has to do then would keep the devices waiting
for their next tasks."""

PUBLISH_SECONDS: Final = 300.0
"""How long a run that ends waits for a record to be published, and for the last ones to end."""


class Endings:
    """Ends flow runs in the order of their iterations, and none after one that was not published.

    A checkpoint says that all before it is on disk: a run is resumed from the last one there is.
    """

    def __init__(self) -> None:
        self._waiting: deque[tuple[float, OpenIteration, Ended]] = deque()
        # Whether the last that was let end was published; itself would hold on to what it made.
        self._published: Future[bool] | None = None

    def __bool__(self) -> bool:
        """Whether there are iterations that are over and were not let end yet."""
        return bool(self._waiting)

    def add(self, opened: OpenIteration, ended: Ended) -> None:
        """Add an iteration that is over."""
        self._waiting.append((monotonic(), opened, ended))

    def end(self, is_running: Callable[[OpenIteration], bool], *, at_once: bool) -> None:
        """Let the next flow runs end that can.

        Args:
            is_running: whether a task shows in a flow run whose end would not be heard.
            at_once: do not wait for that, nor until they have settled.
        """
        while self._waiting and self._is_published():
            since, opened, _ = self._waiting[0]
            if not at_once and (monotonic() < since + SETTLE_SECONDS or is_running(opened)):
                return
            self._end_first()

    def end_all(self) -> None:
        """Let all end, as the run does, and wait until all are published."""
        while self._waiting:
            if self._published is not None:
                wait([self._published], PUBLISH_SECONDS)
            if not self._is_published():
                for _, opened, _ in self._waiting:
                    opened.abandon()
                self._waiting.clear()
                return
            self._end_first()
        if self._published is not None:
            wait([self._published], PUBLISH_SECONDS)

    def _is_published(self) -> bool:
        """Return whether the last that was let end has published its record."""
        last = self._published
        return last is None or (last.done() and last.result())

    def _end_first(self) -> None:
        _, opened, ended = self._waiting.popleft()
        self._published = opened.published
        opened.outcome.set_result(ended)
