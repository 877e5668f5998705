"""Do what a person asks of a run while it runs: pause, resume, cancel, in Prefect or by Ctrl-C.

A thread reads the state of the run's flow run every few seconds. The run looks at what it found
between two messages of its workers:

| PAUSED                  what has begun is finished; then nothing is submitted until RUNNING
| PAUSED as "Suspended"   the UI's Pause: the same without a deployment; with one the process ends
|                         there, and Resume has a worker start it again
| CANCELLING, or ended    the run stops; its last optimizer step is what it leaves
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import copy_context
from datetime import UTC, datetime
from functools import wraps
from threading import Event, Thread
from time import monotonic
from typing import Any, Final, ParamSpec, TypeVar
from uuid import UUID

from httpx import HTTPError
from prefect import State
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.objects import FlowRun
from prefect.exceptions import Pause
from prefect.settings import PREFECT_CLIENT_MAX_RETRIES, temporary_settings
from prefect.states import Cancelled, Paused, Running, Suspended

from flows.runtime.observers import warn
from tasks.runner.prefect_api import Contact
from tasks.unanswered import UNANSWERED

POLL_SECONDS: Final = 2.0
SIGNAL_SECONDS: Final = 15.0
"""How long a Prefect worker has to end the process that it started, before the run does."""

P = ParamSpec("P")
R = TypeVar("R")


class RunCancelledError(RuntimeError):
    """Somebody stopped the run; the message says who and what remains."""


class Control:
    """What was asked of a run."""

    def __init__(
        self,
        nudge: Callable[[object], None] = lambda message: None,
        on_stop: Callable[[str], None] = lambda why: None,
    ) -> None:
        """Prepare for a run.

        Args:
            nudge: wakes the run's loop, when something was asked.
            on_stop: hears why the run is to stop, before the loop does.
        """
        self.held = False  # nothing new may begin
        self._nudge = nudge
        self._on_stop = on_stop
        self._stopped: str | None = None
        self._to_suspend: UUID | None = None
        self._cancelling_since: float | None = None

    def check(self) -> None:
        """Raise if the run is to stop now.

        Raises:
            RunCancelledError: it is.
        """
        if self._stopped is not None:
            raise RunCancelledError(self._stopped)

    @property
    def ends_process(self) -> bool:
        """Whether the process is to end at the boundary: another one goes on from a checkpoint."""
        return self._to_suspend is not None

    def reach_boundary(self, text: str) -> None:
        """Note that everything that had begun is finished; to be called again while that is so.

        A server that is away is told by one of the next calls.

        Raises:
            Pause: the process is to end; a Prefect worker starts it again.
        """
        if self._to_suspend is None:
            return
        # Without the time after which Prefect would not resume it any more.
        state: State[Any] = Suspended(message=f"{text}; Resume goes on from there")
        try:
            with (
                temporary_settings({PREFECT_CLIENT_MAX_RETRIES: 0}),
                get_client(sync_client=True) as client,
            ):
                client.set_flow_run_state(self._to_suspend, state, force=True)
        except (HTTPError, ValueError):  # it is down, or its proxy answers for it
            return
        raise Pause(state=state)

    def see(self, run: FlowRun, client: SyncPrefectClient) -> None:
        """Take in the state of the run's flow run."""
        before = (self.held, self._stopped)
        state = run.state
        if state is None:
            return
        if state.is_cancelling():
            self._see_cancelling()
        elif state.is_final():
            self._stopped = f"set to {state.name} in Prefect"
        elif state.is_paused():
            self._see_pause(run, state, client)
        elif self._to_suspend is not None:  # somebody was quicker than the boundary
            self._stopped = "started again by Prefect in another process"
        else:
            self.held = False
        if self._stopped not in (None, before[1]):
            self._on_stop(self._stopped)
        if before != (self.held, self._stopped):
            self._nudge(self)

    def _see_cancelling(self) -> None:
        self._cancelling_since = self._cancelling_since or monotonic()
        waited = monotonic() - self._cancelling_since
        # A Prefect worker sends a signal to its processes; a second end would disturb the first.
        if not _is_supervised() or waited > SIGNAL_SECONDS:
            self._stopped = "cancelled in Prefect"

    def _see_pause(self, run: FlowRun, state: State[Any], client: SyncPrefectClient) -> None:
        self.held = True
        until = state.state_details.pause_timeout
        if state.state_details.pause_reschedule and run.deployment_id:
            self._to_suspend = run.id
        elif state.state_details.pause_reschedule:
            # Only a deployment's run could be started again: hold this process instead.
            kept: State[Any] = Paused(pause_expiration_time=until, message=state.message)
            client.set_flow_run_state(run.id, kept, force=True)
        elif until is not None and until < datetime.now(UTC):  # as the UI's dialog says
            client.set_flow_run_state(run.id, Running(), force=True)
            self.held = False


@contextmanager
def following(control: Control, flow_run_id: UUID) -> Iterator[None]:
    """Let a control see the state of a flow run while the body runs.

    Who watches the run is told when Prefect's server does not answer for long.
    """
    ended, contact = Event(), Contact(warn)

    def follow() -> None:
        while not ended.wait(POLL_SECONDS):
            try:
                with get_client(sync_client=True) as client:
                    while not ended.is_set():
                        found = client.read_flow_run(flow_run_id)
                        if ended.is_set():  # it may say by now that the run is over
                            return
                        control.see(found, client)
                        contact.succeeded()
                        ended.wait(POLL_SECONDS)
            except (*UNANSWERED, RuntimeError):
                contact.failed()  # a server that is down, or whose proxy answers, is asked again

    with temporary_settings({PREFECT_CLIENT_MAX_RETRIES: 0}):
        context = copy_context()
    Thread(target=context.run, args=(follow,), name="control", daemon=True).start()
    try:
        yield
    finally:
        ended.set()


def is_stop(error: BaseException | None) -> bool:
    """Say whether an error means that somebody ended the run, and not that it failed."""
    return isinstance(error, RunCancelledError) or not isinstance(error, Exception | None)


def ending_as_asked(body: Callable[P, R]) -> Callable[P, R | State[Any]]:
    """Let the body of a flow that somebody stops end as Cancelled, not as Failed or Crashed."""

    @wraps(body)
    def call(*arguments: P.args, **parameters: P.kwargs) -> R | State[Any]:
        try:
            return body(*arguments, **parameters)
        except RunCancelledError as error:
            return Cancelled(message=str(error))
        except KeyboardInterrupt:
            return Cancelled(message="stopped by Ctrl-C or digen cancel")

    return call


def _is_supervised() -> bool:
    """Say whether a Prefect worker or runner started this process, and ends it on a cancel."""
    return os.environ.get("PREFECT__ENABLE_CANCELLATION_AND_CRASHED_HOOKS", "").lower() == "false"
