"""Wait for a handful of tasks of a run and read their receipts."""

from time import monotonic
from typing import Any

from digen_core.config import ConfigError
from flows.session import Session
from tasks.cluster import WorkerLostError, require_workers, workers_of_pools
from tasks.completions import Completion, Completions, mark_crashed

HEARTBEAT_SECONDS = 5.0
RESTART_SECONDS = 30.0  # until a lost worker of a pool is back


class TaskFailedError(RuntimeError):
    """A task of the run failed; the message names the task, its worker and the error."""


def next_completion(session: Session, completions: Completions) -> Completion:
    """Wait for the next task to end, while the workers of the run are there.

    Raises:
        RunCancelledError: somebody stopped the run.
        WorkerLostError: one is gone.
    """
    while True:
        session.control.check()
        try:
            return completions.next(timeout=HEARTBEAT_SECONDS)
        except TimeoutError:
            require_workers(session.client, session.addresses)
            require_pool_workers(session)


def require_pool_workers(session: Session) -> None:
    """Check that every pool has workers; those that a nanny watches over come back when lost.

    Raises:
        WorkerLostError: one has had none for too long.
    """
    present = workers_of_pools(session.client, session.pools)
    empty, before = [pool for pool, names in present.items() if not names], session.empty_since
    session.empty_since = {pool: before.get(pool, monotonic()) for pool in empty}
    for pool, since in session.empty_since.items():
        if monotonic() - since > RESTART_SECONDS:
            workers = ", ".join(session.pools[pool])
            raise WorkerLostError(
                f"all workers of the pool {pool!r} were lost ({workers}); see their logs, and the "
                "memory of their machines"
            )


def require_success(session: Session, completion: Completion, label: str, device: str) -> None:
    """Raise what a person can act on if a task did not succeed.

    Raises:
        WorkerLostError: because its worker is gone.
        ConfigError: because of what the user asked for, as the worker found.
        TaskFailedError: for another reason, which the message gives.
    """
    if completion.succeeded:
        return
    if completion.state_type == "CRASHED":
        mark_crashed(completion)
    require_workers(session.client, session.addresses)
    message = completion.message.removeprefix("Task run encountered an exception ")
    if message.startswith(f"{ConfigError.__name__}: "):
        raise ConfigError(message.removeprefix(f"{ConfigError.__name__}: "))
    raise TaskFailedError(f"{label} on {device} failed: {message}")


def receipts_of(
    session: Session, completions: Completions, labels: dict[Any, tuple[str, str]]
) -> dict[Any, dict[str, Any]]:
    """Wait for all pending tasks and return their receipts by task run id.

    Args:
        session: of the run.
        completions: in whose block the tasks were submitted.
        labels: task run id -> (label, device), for errors.
    """
    receipts = {}
    while completions.num_pending:
        completion = next_completion(session, completions)
        require_success(session, completion, *labels[completion.task_run_id])
        receipts[completion.task_run_id] = completion.receipt
    return receipts
