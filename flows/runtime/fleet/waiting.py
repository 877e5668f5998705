"""Waiting, for workers or for an iteration's turn, with a state in Prefect that says so."""

from contextlib import suppress
from threading import Event
from time import monotonic
from types import TracebackType
from typing import Final, Self
from uuid import UUID

from prefect.client.orchestration import get_client
from prefect.settings import PREFECT_CLIENT_MAX_RETRIES, temporary_settings
from prefect.states import Pending, Running, State

from digen_core.control.protocol import Role
from flows.runtime.context import RunContext
from flows.runtime.observers import say
from tasks.cluster.calls import WorkerLostError
from tasks.unanswered import UNANSWERED

STATE: Final = "WaitingForWorkers"
TURN: Final = "WaitingForTurn"
TURN_SECONDS: Final = 3.0
"""How long an iteration may wait for its turn before its state says so."""


class Waiting:
    """Shows, in the terminal and as the state of the run in Prefect, for whom a run waits.

    Use it by ``with``, or call ``end``.
    """

    def __init__(self, run: RunContext) -> None:
        self._run = run
        self._since: float | None = None

    def for_role(self, role: Role) -> None:
        """Wait for a worker of a role; call it again and again.

        Raises:
            WorkerLostError: none came for ``cluster.rejoin_timeout`` seconds; one that loads its
                model has come.
        """
        text = f"waiting for a worker with the role {role}: none is left"
        limit = self._run.config.cluster.rejoin_timeout
        if self._since is None:
            self._since = monotonic()
            say(text)
            self._show(STATE, text)
        elif monotonic() - self._since > limit and not self._run.fleet.has_coming(role):
            raise WorkerLostError(
                f"no worker with the role {role} came back in {limit:.0f} s "
                "(cluster.rejoin_timeout); start one, and resume the run"
            )

    def end(self) -> None:
        """Note that there is one again, if the run waited."""
        if self._since is not None:
            self._since = None
            say(f"going on with {', '.join(device.name for device in self._run.fleet.devices)}")
            self._show("Running", "")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Show that the run continues, unless it ends."""
        if error is None:
            self.end()

    def _show(self, name: str, text: str) -> None:
        """Set the name of the run's own state, unless somebody has paused or cancelled it."""
        state: State[None] = Running(name=name, message=text)
        show_state(self._run.lineage.flow_run_ids[-1], state, if_running=True)


def wait_for_turn(turn: Event, flow_run_id: str | None) -> None:
    """Wait until an iteration that was opened ahead is worked on; till then it is not running.

    Prefect counts the time in which a flow run is running as its own.
    """
    if turn.wait(TURN_SECONDS):
        return
    if flow_run_id is None:
        turn.wait()
        return
    show_state(flow_run_id, Pending(name=TURN, message="opened ahead of the work"))
    turn.wait()
    show_state(flow_run_id, Running())


def show_state(flow_run_id: str, state: State[None], *, if_running: bool = False) -> None:
    """Set the state of a flow run; if Prefect's server is away, or its proxy answers, it stays.

    Args:
        flow_run_id: of the flow run.
        state: to set.
        if_running: leave a state that is none of a flow run that runs as it is.
    """
    with (
        suppress(*UNANSWERED),
        temporary_settings({PREFECT_CLIENT_MAX_RETRIES: 0}),
        get_client(sync_client=True) as client,
    ):
        if if_running:
            before = client.read_flow_run(UUID(flow_run_id)).state
            if before is None or not before.is_running():
                return
        client.set_flow_run_state(UUID(flow_run_id), state, force=True)
