"""End the tasks that a run left on its workers when it stopped, and what Prefect shows of them."""

import logging
from time import monotonic, sleep
from typing import Any, Final
from uuid import UUID

from distributed import Client, Future, Worker
from httpx import codes
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import State
from prefect.exceptions import PrefectHTTPStatusError
from prefect.states import Cancelled

from tasks.cluster.calls import on_workers
from tasks.unanswered import UNANSWERED

logger = logging.getLogger(__name__)

TASK_SECONDS: Final = 3.0
"""How long a stopped run waits for the tasks that run."""
ANSWER_SECONDS: Final = 1.0
POLL_SECONDS: Final = 0.2


def stop_tasks(client: Client, addresses: list[str]) -> set[str]:
    """Drop what waits on workers, wait for what runs there, and mark what does not end.

    Without the mark a task run whose worker is closed under it would show as Running for ever.

    Args:
        client: whose tasks to stop.
        addresses: of the workers.

    Returns:
        Addresses of those that still execute one.
    """
    own = set(client.futures)
    # Last made, first dropped: Dask's scheduler closes the connection of a client that cancels a
    # task of which something depends that the client has let go of (an assertion of its own).
    for key in reversed(list(client.futures)):
        client.cancel([Future(key, client)])
    deadline = monotonic() + TASK_SECONDS
    while (left := _running(client, addresses, own)) and monotonic() < deadline:
        sleep(POLL_SECONDS)
    if not left:  # the API is not asked for nothing: it may have to start first
        return set()
    keys = set().union(*left.values())
    try:
        _mark([UUID(key[-36:]) for key in keys])
    except UNANSWERED as error:
        logger.warning("Prefect was not told of %d tasks that were stopped: %s", len(keys), error)
    return set(left)


def _running(client: Client, addresses: list[str], own: set[str]) -> dict[str, set[str]]:
    """Return which of a client's tasks are executed, by address; who does not answer has none."""
    found = on_workers(client, addresses, executed, seconds=ANSWER_SECONDS)
    return {address: mine for address, keys in found.items() if (mine := own.intersection(keys))}


def executed(dask_worker: Worker) -> list[str]:
    """Return the keys of what a worker executes."""
    return [str(task.key) for task in dask_worker.state.executing]


def _mark(task_run_ids: list[UUID]) -> None:
    state: State[Any] = Cancelled(message="the run was stopped while this ran")
    with get_client(sync_client=True) as client:
        for task_run_id in task_run_ids:
            try:
                client.set_task_run_state(task_run_id, state, force=True)
            except PrefectHTTPStatusError as error:
                if error.response.status_code != codes.NOT_FOUND:
                    raise
                continue  # the server has not heard of it yet
