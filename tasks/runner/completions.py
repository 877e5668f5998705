"""Completions: ends of tasks, as the flow process learns them without fetching results.

    with Completions() as done:
        futures = [denoise.submit(...) for ... in ...]
        while done.num_pending:
            completion = done.next(timeout=60)

A worker sends the receipt of a task over Dask's event stream just before Dask's own "task
finished", in the same ordered stream. So when the Dask future turns final, its receipt is already
here; a future that fails without one (worker lost, cancelled) completes with the error's text.
"""

import queue
import threading
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from contextvars import ContextVar, Token, copy_context
from dataclasses import dataclass
from threading import Thread
from typing import Any, NotRequired, Self, TypedDict
from uuid import UUID

from distributed import CancelledError, Client, Future, KilledWorker
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import State
from prefect.context import FlowRunContext
from prefect.exceptions import PrefectHTTPStatusError
from prefect.futures import PrefectFuture
from prefect.states import Crashed
from prefect_dask.task_runners import PrefectDaskFuture

from tasks.unanswered import UNANSWERED

_active: ContextVar["Completions | None"] = ContextVar("active_completions", default=None)


class Report(TypedDict):
    """What a worker says of a task run that ended there; the fields of a `Completion`."""

    state_type: str
    state_name: str
    message: str
    worker: str
    receipt: bytes
    error_types: NotRequired[Sequence[str]]
    error_text: NotRequired[str]


@dataclass(frozen=True)
class Completion:
    """The end of one task run."""

    future: PrefectDaskFuture[Any]
    """Its future: pass it on as a parameter, or drop it to free the result on the worker."""
    state_type: str
    """Prefect's: COMPLETED, FAILED, CRASHED, CANCELLED, or PENDING if an upstream task failed."""
    state_name: str
    message: str
    """The state's message, or the error's text if Dask lost or cancelled the task."""
    error_types: Sequence[str] = ()
    """What the body raised: its class and those above it, as ``module.name``."""
    error_text: str = ""
    """What the error says."""
    worker: str = ""
    """Address of the Dask worker; empty if the task ended nowhere."""
    receipt: bytes = b""
    """What the worker sent, for `tasks.receipts.read`; empty if the task ended nowhere."""

    @property
    def succeeded(self) -> bool:
        """Say whether the task completed."""
        return self.state_type == "COMPLETED"

    @property
    def task_run_id(self) -> UUID:
        """Prefect's id of the task run."""
        return self.future.task_run_id

    @property
    def key(self) -> str:
        """Dask's key of the task."""
        return str(self.future.wrapped_future.key)


class Inbox:
    """Receives the receipts that reach one Dask client and keeps those that someone expects."""

    def __init__(self, client: Client):
        self.topic = f"digen-receipts-{client.id}"
        self._client = client
        self._reports: dict[str, Report | None] = {}

    def subscribe(self) -> None:
        """Ask the scheduler for the receipts; a second time does no harm."""
        self._client.subscribe_topic(self.topic, self._receive)

    def expect(self, task_run_id: UUID) -> None:
        """Keep the receipt of this task run when it comes."""
        self._reports[str(task_run_id)] = None

    def take(self, task_run_id: UUID) -> Report | None:
        """Return the report of this task run, if one came, and expect no more."""
        return self._reports.pop(str(task_run_id), None)

    def _receive(self, event: tuple[float, dict[str, Report]]) -> None:
        _, reports = event
        self._reports |= {key: report for key, report in reports.items() if key in self._reports}


class Completions:
    """Hands out, one by one, the ends of the tasks that this flow run submits inside the block.

    Each submitted future gives exactly one completion, in the order in which they end. Tasks of
    subflows are not caught; they may have Completions of their own. Leaving the block forgets
    what is pending.
    """

    def __init__(self, ended: "queue.SimpleQueue[Any] | None" = None) -> None:
        """Prepare to catch completions.

        Args:
            ended: where to put them instead of handing them out, such as one queue for several
                flow runs.
        """
        self._entered: Inbox | None = None
        self._flow_run_id: UUID | None = None
        self._ended: queue.SimpleQueue[Any] = ended or queue.SimpleQueue()
        self._lock = threading.Lock()
        self._pending: dict[UUID, PrefectDaskFuture[Any]] = {}
        self._num_pending = 0
        self._token: Token[Completions | None] | None = None

    def __enter__(self) -> Self:
        context = FlowRunContext.get()
        inbox = getattr(context and context.task_runner, "inbox", None)
        if context is None or not isinstance(inbox, Inbox):
            raise RuntimeError("Completions works inside a flow that runs on a LeanDaskTaskRunner")
        self._flow_run_id = context.flow_run.id if context.flow_run else None
        self._entered = inbox
        inbox.subscribe()
        self._token = _active.set(self)
        return self

    def __exit__(self, *_: object) -> None:
        assert self._token is not None
        _active.reset(self._token)
        with self._lock:
            forgotten, self._pending = list(self._pending), {}
        for task_run_id in forgotten:
            self._inbox.take(task_run_id)

    @property
    def _inbox(self) -> Inbox:
        assert self._entered is not None, "Completions is used outside its block"
        return self._entered

    @property
    def num_pending(self) -> int:
        """Number of submitted tasks whose completion was not handed out yet."""
        return self._num_pending

    def next(self, timeout: float | None = None) -> Completion:
        """Wait for the next task to end.

        Args:
            timeout: Seconds to wait; None waits for ever.

        Raises:
            TimeoutError: If no task ended in time.
            LookupError: If no task is pending, so that none can end.
        """
        if self._num_pending == 0:
            raise LookupError("no task is pending: submit one inside the Completions block first")
        try:
            completion: Completion = self._ended.get(timeout=timeout)
        except queue.Empty:
            with self._lock:
                keys = [str(future.wrapped_future.key) for future in self._pending.values()]
            shown = ", ".join(keys[:3]) + (", ..." if len(keys) > 3 else "")
            raise TimeoutError(
                f"no task ended within {timeout} s; {len(keys)} pending: {shown}"
            ) from None
        with self._lock:
            self._num_pending -= 1
        return completion

    def expect(self, task_run_id: UUID) -> str:
        """Announce a task run, before it is submitted, and return the topic of its receipt."""
        self._inbox.expect(task_run_id)
        return self._inbox.topic

    def track(self, future: PrefectDaskFuture[Any]) -> None:
        """Hand out the end of this announced task run."""
        with self._lock:
            self._pending[future.task_run_id] = future
            self._num_pending += 1
        task_run_id = future.task_run_id
        future.wrapped_future.add_done_callback(lambda done: self._end(task_run_id, done))

    def _end(self, task_run_id: UUID, done: Future[Any]) -> None:
        with self._lock:
            future = self._pending.pop(task_run_id, None)
        report = self._inbox.take(task_run_id)
        if future is None:  # the block was left
            return
        if done.status == "finished" and report is not None:
            self._ended.put(Completion(future, **report))
        else:
            self._ended.put(_lost(future, done))


def catching(inbox: Inbox) -> Completions | None:
    """Return the Completions that catches what this flow run submits now, if there is one."""
    active = _active.get()
    if active is None or active._entered is not inbox:
        return None
    context = FlowRunContext.get()
    flow_run_id = context.flow_run.id if context and context.flow_run else None
    return active if active._flow_run_id == flow_run_id else None


def mark_crashed(completion: Completion) -> bool:
    """Record at the Prefect server that a task run crashed, and say whether the server knew it.

    The worker that should have done so is gone; without this the run stays Running for ever. A
    worker that died at once may never have announced the run.
    """
    state: State[Any] = Crashed(message=completion.message)
    with get_client(sync_client=True) as client:
        try:
            client.set_task_run_state(completion.task_run_id, state, force=True)
        except PrefectHTTPStatusError as error:
            if error.response.status_code == 404:
                return False
            raise
    return True


def mark_lost(task_run_ids: Collection[UUID]) -> None:
    """Record at the Prefect server, beside the run, that task runs were lost with their workers."""
    lost: State[Any] = Crashed(message="its worker was lost; the work is done elsewhere")

    def mark() -> None:
        with suppress(*UNANSWERED), get_client(sync_client=True) as client:
            for task_run_id in task_run_ids:
                with suppress(PrefectHTTPStatusError):  # the server may never have heard of it
                    client.set_task_run_state(task_run_id, lost, force=True)

    if task_run_ids:
        Thread(target=copy_context().run, args=(mark,), name="mark-lost", daemon=True).start()


def give_up(futures: Iterable[PrefectFuture[Any]]) -> None:
    """Have Dask forget tasks, and so not compute again for them what was lost with a worker.

    One that runs goes on to its end, but its result is dropped.
    """
    for future in futures:
        if isinstance(future, PrefectDaskFuture):
            future.wrapped_future.cancel()


def _lost(future: PrefectDaskFuture[Any], done: Future[Any]) -> Completion:
    if done.status == "finished":
        return Completion(future, "CRASHED", "NoReceipt", "the task ended without a receipt")
    cancelled = done.status == "cancelled"
    try:
        done.result(timeout=5)
        text = f"the Dask future is {done.status}"
    except KilledWorker as error:
        text = (
            f"KilledWorker: {error.allowed_failures + 1} workers died, one after the other, while "
            f"they ran it, the last at {error.last_worker.address}; see their logs, and the memory "
            "of their machines"
        )
    except (Exception, CancelledError) as error:
        text = f"{type(error).__name__}: {error}"
    kind = ("CANCELLED", "Cancelled") if cancelled else ("CRASHED", "Crashed")
    return Completion(future, *kind, text)
