"""Running task runs: Prefect hears that one runs after half a second, and how each ended.

A task that ends sooner is never told to run: half of all events, each of which takes the worker and
Prefect's server a millisecond or two. Its end says when it began.
"""

import threading
from contextvars import Context, copy_context
from time import monotonic
from typing import Any, Final, NamedTuple
from uuid import UUID

from prefect.client.schemas.objects import State, TaskRun
from prefect.events.schemas.events import Event
from prefect.utilities.engine import emit_task_run_state_change_event as emit

SECONDS: Final = 0.5
"""How long a task runs before Prefect is told so."""


class _Untold(NamedTuple):
    due: float
    context: Context
    """With the task run and the flow run that the event belongs to."""

    task_run: TaskRun
    before: State[Any] | None
    running: State[Any]


class Running:
    """The task runs of this process that began and that Prefect was not told of."""

    def __init__(self) -> None:
        self._untold: dict[UUID, _Untold] = {}  # the first began first
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def tell(
        self,
        task_run: TaskRun,
        initial_state: State[Any] | None,
        validated_state: State[Any],
        follows: Event | None = None,
    ) -> Event | None:
        """Send the event of a state to Prefect; of one that runs later, if it runs then.

        In place of ``emit_task_run_state_change_event`` of Prefect's task engine, whose arguments
        these are.
        """
        with self._changed:  # so an end never overtakes a beginning
            self._untold.pop(task_run.id, None)
            if not validated_state.is_running():
                return emit(task_run, initial_state, validated_state, follows)
            now = task_run.model_copy()  # the engine goes on with its own
            due = monotonic() + SECONDS
            untold = _Untold(due, copy_context(), now, initial_state, validated_state)
            self._untold[task_run.id] = untold
            if self._thread is None:
                self._thread = threading.Thread(target=self._watch, name="running", daemon=True)
                self._thread.start()
            if len(self._untold) == 1:
                self._changed.notify()
        return None

    def _watch(self) -> None:
        with self._changed:
            while True:
                self._changed.wait(self._tell_of_due())

    def _tell_of_due(self) -> float | None:
        """Tell of those that have run long enough; return the seconds until another one has.

        Nothing of them stays in the thread: a context leads to what its task returned.
        """
        for task_run_id, untold in list(self._untold.items()):
            if (left := untold.due - monotonic()) > 0:
                return left
            del self._untold[task_run_id]
            untold.context.run(emit, untold.task_run, untold.before, untold.running)
        return None
