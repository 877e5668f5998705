"""The flow runs of iterations, each in a thread of its own, opened one ahead of the work."""

import logging
from contextvars import copy_context
from dataclasses import dataclass
from queue import Empty
from threading import Thread
from time import monotonic
from typing import Final

from httpx import HTTPError
from prefect.exceptions import CancelledRun

from flows.runtime.context import RunContext
from flows.runtime.iterations.endings import PUBLISH_SECONDS
from flows.runtime.iterations.iteration import iteration
from flows.runtime.iterations.open_iteration import OpenIteration
from flows.runtime.subflows import on_cluster
from tasks.runner.prefect_api import api_answers

logger = logging.getLogger(__name__)

OPENING_SECONDS: Final = 10.0
"""How long an iteration waits for its flow run if Prefect's server is away."""


@dataclass(frozen=True, slots=True)
class RunEnded:
    """The thread of a flow run has ended."""

    index: int
    error: BaseException | None


class IterationRuns:
    """Opens flow runs, and waits for their ends."""

    def __init__(self, run: RunContext, first: int) -> None:
        """Prepare for iterations from ``first`` on."""
        self.num_opened = first
        self._run = run
        self._num_asked = first
        self._asked = monotonic()
        self._threads: list[Thread] = []
        self._num_ended = 0

    def open_until(self, index: int) -> None:
        """Open the next flow run, when the one before has reported to the inbox that it is open.

        One that cannot be opened is left to open when it can: the iteration continues without it.
        """
        last = min(index, self._run.config.num_iterations - 1)
        if self._num_asked <= min(last, self.num_opened):
            self._start(self._num_asked)
            self._num_asked += 1
        elif self.num_opened < self._num_asked and self._is_late() and not api_answers():
            self._start(self.num_opened)

    def take(self, opened: OpenIteration) -> bool:
        """Say whether an iteration that reports to be open is to be worked on.

        If not, its flow run was opened too late, and ends.
        """
        if opened.index < self.num_opened:
            opened.abandon()
            return False
        self.num_opened += 1
        return True

    def end(self, ended: RunEnded) -> None:
        """Count the end of a thread.

        Raises:
            BaseException: the one that ended it, but not because Prefect's server stayed away when
                the iteration had begun.
        """
        self._num_ended += 1
        if isinstance(ended.error, HTTPError) and ended.index < self.num_opened:
            logger.warning("iteration %d has no page in Prefect: %s", ended.index + 1, ended.error)
        elif ended.error is not None:
            raise ended.error

    def join(self) -> None:
        """Wait for all flow runs to end; those that open meanwhile are abandoned.

        After PUBLISH_SECONDS the others are left to themselves: what they wait for hangs.
        """
        deadline = monotonic() + PUBLISH_SECONDS
        while self._num_ended < len(self._threads):
            try:
                message = self._run.inbox.get(timeout=max(0.0, deadline - monotonic()))
            except Empty:
                logger.warning("some iterations did not end in %.0f s", PUBLISH_SECONDS)
                return
            match message:
                case OpenIteration() as opened:
                    opened.abandon()
                case RunEnded():
                    self._num_ended += 1
        for thread in self._threads:
            thread.join()

    def _is_late(self) -> bool:
        return monotonic() - self._asked > OPENING_SECONDS

    def _start(self, index: int) -> None:
        self._asked = monotonic()
        name = f"iteration-{index:04d}"
        thread = Thread(target=copy_context().run, args=(self._open, index), name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _open(self, index: int) -> None:
        error = None
        try:
            on_cluster(self._run, iteration, index)
        except CancelledRun:  # it was abandoned
            pass
        except BaseException as raised:
            error = raised
        self._run.inbox.put(RunEnded(index, error))
