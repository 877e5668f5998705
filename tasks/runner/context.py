"""The worker side of the lean runner: Prefect's own task engine in a context built once.

The stock runner rebuilds settings, flow context, HTTP client and SSL context for every task. Here
a process keeps them for the few flow runs it saw last; every task runs in a copy of that context,
so that nothing one body sets is seen by the next.
"""

import asyncio
import contextvars
import logging
import pickle
import threading
import zlib
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from functools import lru_cache
from typing import Any, NamedTuple
from uuid import UUID

from distributed import Worker, get_worker
from distributed.worker import _worker_cvar
from prefect import State, tags, task_engine
from prefect.client.schemas.objects import TaskRun
from prefect.context import (
    FlowRunContext,
    SettingsContext,
    SyncClientContext,
    hydrated_context,
)
from prefect.task_engine import _create_task_run_locally, run_task_async, run_task_sync
from prefect.tasks import Task

from tasks.body import value_of
from tasks.receipts import collecting, is_collecting, packed
from tasks.runner.completions import Report
from tasks.runner.inputs import hidden, revealing
from tasks.runner.pickling import load_call
from tasks.runner.running import Running

MAX_FLOW_RUNS = 4


class Call(NamedTuple):
    """What differs from task run to task run."""

    task_run_id: UUID
    parameters: dict[str, Any]
    wait_for: Any
    dependencies: dict[str, set[Any]]
    tags: tuple[str, ...]
    context_key: tuple[str, str]
    topic: str | None
    """Where to send the receipt; None: nobody asked for one."""


class _Hydrated:
    """A Prefect context that was entered in a context of its own."""

    def __init__(self, blob: bytes):
        self.context = contextvars.copy_context()
        self._stack = self.context.run(_enter, blob)

    def close(self) -> None:
        self.context.run(self._stack.close)

    def __del__(self) -> None:  # when it is not kept, and its last task has ended
        with suppress(Exception):
            self.close()


_kept: OrderedDict[tuple[str, str], _Hydrated] = OrderedDict()
_lock = threading.Lock()


def execute(call: bytes, task: bytes, context: bytes, upstream: Sequence[Any]) -> State:
    """Run one Prefect task and return its final state; see `tasks.runner.entry.run_task`."""
    loaded = Call(*load_call(call, upstream))
    inputs = hidden(loaded.parameters, upstream)
    loaded = loaded._replace(
        parameters=inputs.parameters,
        dependencies={
            name: inputs.runs.get(name, set()) | loaded.dependencies.get(name, set())
            for name in {*inputs.runs, *loaded.dependencies}
        },
    )
    hydrated = _hydrate(loaded.context_key, context)
    return hydrated.context.copy().run(_run, _load_task(task), loaded, get_worker())


@lru_cache(maxsize=64)
def _load_task(blob: bytes) -> Task[Any, Any]:
    return revealing(load_call(blob, ()))


def _run(task: Task[Any, Any], call: Call, worker: Worker) -> State:
    _worker_cvar.set(worker)  # the context was made on any worker of this process
    with tags(*call.tags), collecting() as receipt:
        try:
            arguments: dict[str, Any] = {
                "task": task,
                "task_run": _pending_run(task, call),
                "parameters": call.parameters,
                "wait_for": call.wait_for,
                "return_type": "state",
                "context": None,
            }
            if task.isasync:
                ended = asyncio.run(run_task_async(**arguments))
            else:
                ended = run_task_sync(**arguments)
        finally:
            # Prefect links results to states here for the length of the flow run.
            if (flow_run_context := FlowRunContext.get()) is not None:
                flow_run_context.run_results.clear()
    assert isinstance(ended, State)  # as `return_type` asks
    state: State[Any] = ended
    if call.topic is not None:
        _send_receipt(worker, call.topic, call.task_run_id, state, packed(receipt))
    return state


def _pending_run(task: Task[Any, Any], call: Call) -> TaskRun:
    """Return a task run for the engine to begin with.

    One that the engine makes itself is reported as pending, a moment before it runs: a third of all
    events, each of which takes the worker and Prefect's server a millisecond or two.
    """
    return _create_task_run_locally(
        task,
        call.task_run_id,
        call.parameters,
        wait_for=call.wait_for,
        extra_task_inputs=call.dependencies,
    )


def _send_receipt(
    worker: Worker, topic: str, task_run_id: UUID, state: State, receipt: bytes
) -> None:
    error = _error_of(state)
    # This goes through the same stream as Dask's own "task finished" and so arrives before it.
    report: Report = {
        "state_type": state.type.value,
        "state_name": state.name or "",
        "message": state.message or "",
        "worker": worker.address,
        "receipt": receipt,
    }
    if error is not None:
        types = [f"{t.__module__}.{t.__qualname__}" for t in type(error).__mro__]
        report |= {"error_types": types, "error_text": str(error)}
    worker.log_event(topic, {str(task_run_id): report})


def _error_of(state: State) -> BaseException | None:
    """Return what a task body raised; None if it did not."""
    data = value_of(state)
    return data if isinstance(data, BaseException) else None


def _hydrate(key: tuple[str, str], blob: bytes) -> _Hydrated:
    with _lock:
        hydrated = _kept.get(key)
        if hydrated is None:
            hydrated = _kept[key] = _Hydrated(blob)
            while len(_kept) > MAX_FLOW_RUNS:
                _kept.popitem(last=False)
        _kept.move_to_end(key)
        return hydrated


def _enter(blob: bytes) -> ExitStack:
    serialized = load_call(zlib.decompress(blob), ())
    # The same for all flow runs of a process, and 0.1 s of work to make: settings, and a client
    # with its SSL context.
    settings = _settings(pickle.dumps(serialized.pop("settings_context")))
    SettingsContext.__var__.set(settings)
    client = _client(settings.settings.api.url)
    SyncClientContext.__var__.set(client)
    with ExitStack() as stack:
        stack.enter_context(hydrated_context(serialized, client=client.client))
        return stack.pop_all()


@lru_cache(maxsize=4)
def _settings(blob: bytes) -> SettingsContext:
    return SettingsContext(**pickle.loads(blob))


@lru_cache(maxsize=4)
def _client(api_url: str | None) -> SyncClientContext:
    """Return an open client of an API; it stays open as long as the process lives."""
    context = SyncClientContext()
    contextvars.copy_context().run(context.__enter__)
    return context


class _RoutineLines(logging.Filter):
    """Drops the line that each task run logs when it completes; it drowns the flow's own lines."""

    def filter(self, record: logging.LogRecord) -> bool:
        routine = record.levelno == logging.INFO and str(record.msg).startswith("Finished in state")
        return not (routine and is_collecting())


logging.getLogger("prefect.task_runs").addFilter(_RoutineLines())
task_engine.emit_task_run_state_change_event = Running().tell
