"""Call the flows that a run is made of, each with its own page in Prefect where that answers."""

from collections.abc import Callable
from functools import wraps
from threading import Event
from typing import Any
from uuid import uuid4

from httpx import HTTPError
from prefect import Flow, get_run_logger, tags
from prefect.context import FlowRunContext
from prefect.settings import PREFECT_FLOWS_HEARTBEAT_FREQUENCY

from flows.runtime.context import RunContext
from tasks.runner.prefect_api import PATIENT, api_answers, with_settings
from tasks.runner.task_runner import LeanDaskTaskRunner


def on_cluster(run: RunContext, subflow: Flow[Any, Any], *arguments: Any) -> Any:
    """Call a subflow whose tasks run on the run's workers.

    While Prefect's server is away, or fails, its tasks become those of the run's own flow run.
    """
    runner: Any = LeanDaskTaskRunner(run.address)  # Prefect wants its futures invariant
    # The run's own flow sends the heartbeats: the end of a flow waits up to a second for the thread
    # that sends its own.
    settings = {**PATIENT, PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None}
    with with_settings(settings), _context_of(run):
        if api_answers():
            own, began = subflow.with_options(task_runner=runner), Event()
            own.fn = _noting(own.fn, began)
            try:
                with tags(run.run_id):
                    return own(run.run_id, *arguments)
            except HTTPError:
                if began.is_set():
                    raise
        get_run_logger().warning(
            "Prefect's server does not answer, or fails: %s goes on without a page of its own, and "
            "its tasks will show here",
            subflow.name,
        )
        with runner, _run_context().model_copy(update={"task_runner": runner}):
            return subflow.fn(run.run_id, *arguments)


def _run_context() -> FlowRunContext:
    context = FlowRunContext.get()
    assert context is not None
    return context


def _context_of(run: RunContext) -> FlowRunContext:
    """Return the context in which subflows are called."""
    context = _run_context()
    # Only the run's own flow ends when the run is suspended: a subflow is finished first.
    changes: dict[str, Any] = {
        "flow_run_suspension_request": type(context.flow_run_suspension_request)()
    }
    flow_run_ids = run.lineage.flow_run_ids
    if flow_run_ids[-1:] and flow_run_ids.count(flow_run_ids[-1]) > 1:
        changes["task_run_dynamic_keys"] = _FreshKeys()
    return context.model_copy(update=changes)


class _FreshKeys(dict[str, Any]):
    """Names of the calls in a flow run that a worker runs again.

    By the same name Prefect would find the subflow of the first time, which has ended.
    """

    def __contains__(self, key: object) -> bool:
        return False

    def __setitem__(self, key: str, value: object) -> None:
        super().__setitem__(key, str(uuid4()))


def _noting(function: Callable[..., Any], began: Event) -> Callable[..., Any]:
    """Return the function, but it sets an event when it is called."""

    @wraps(function)
    def call(*arguments: Any, **parameters: Any) -> Any:
        began.set()
        return function(*arguments, **parameters)

    return call
