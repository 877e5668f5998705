"""The flow runs of iterations, each in a thread of its own, opened one ahead of the work."""

import logging
from contextlib import suppress
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
from flows.runtime.observers import say
from flows.runtime.subflows import on_cluster
from tasks.runner.prefect_api import api_answers

logger = logging.getLogger(__name__)

OPENING_SECONDS: Final = 10.0
"""How long an iteration waits for its flow run if Prefect's server is away; and, after the last
one, the workers for the ends of flow runs."""
LOOK_SECONDS: Final = 0.5


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
        self._is_closed = False

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

        If not, its flow run was opened too late, and ends: another thread has opened the iteration,
        or the run has gone back since to one before it.
        """
        if opened.index != self.num_opened:
            opened.abandon()
            return False
        self.num_opened += 1
        return True

    def end(self, ended: RunEnded) -> None:
        """Take in the end of a thread.

        Raises:
            BaseException: the one that ended it, but not because Prefect's server stayed away when
                the iteration had begun.
        """
        self._threads = [thread for thread in self._threads if thread.is_alive()]
        if isinstance(ended.error, HTTPError) and ended.index < self.num_opened:
            logger.warning("iteration %d has no page in Prefect: %s", ended.index + 1, ended.error)
        elif ended.error is not None:
            raise ended.error

    def close(self, *, hurry: bool = False) -> None:
        """Wait for all flow runs to end; those that open meanwhile are abandoned.

        Where Prefect's server is away, or fails, what it has to be told is left to the end of the
        run, so that the workers need not wait for it.

        Args:
            hurry: ask at once whether it is away, as for a run that somebody stopped.
        """
        patience = 0.0 if hurry else OPENING_SECONDS
        self._is_closed = True
        began = monotonic()
        while not self._wait(LOOK_SECONDS):
            if monotonic() - began > patience and not api_answers():
                self._run.when_free.append(self.join)
                return
            if monotonic() - began > PUBLISH_SECONDS:
                logger.warning("some iterations did not end in %.0f s", PUBLISH_SECONDS)
                return

    def join(self) -> None:
        """Wait for the flow runs that were left open; after PUBLISH_SECONDS they stay so."""
        if self._wait(0.0):
            return
        say("telling Prefect how iterations ended")
        began = monotonic()
        while monotonic() - began < PUBLISH_SECONDS:
            if self._wait(LOOK_SECONDS):
                return

    def _wait(self, seconds: float) -> bool:
        """Wait so long at most for the threads to end; say whether they have."""
        with suppress(Empty):
            while True:
                message = self._run.inbox.get_nowait()
                if isinstance(message, OpenIteration):
                    message.abandon()
        deadline = monotonic() + seconds
        for thread in self._threads:
            thread.join(max(0.0, deadline - monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

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
        if not self._is_closed:  # else the inbox may be that of the next ones
            self._run.inbox.put(RunEnded(index, error))
