"""Batches: tasks that need no controller, such as loading, evaluating and exporting."""

from collections.abc import Callable, Iterable
from typing import Any
from uuid import UUID

import dask
from prefect.futures import PrefectFuture

from digen_core.checkpoints.manifest import DamagedError
from digen_core.errors import UserError
from flows.runtime.context import RunContext
from flows.runtime.fleet.losses import DevicesLostError, look, look_if_due
from flows.runtime.observers import count
from tasks.runner.completions import Completion, Completions, mark_crashed

POLL_SECONDS = 1.0


class TaskFailedError(RuntimeError):
    """A task of the run failed; the message names the task, its worker and the error."""


class Batch:
    """Tasks of one flow run, each on a device or in a pool, watched until their receipts are read.

    Use it inside the ``Completions`` block in which the tasks are submitted.
    """

    def __init__(
        self,
        run: RunContext,
        completions: Completions,
        check: Callable[[RunContext], None] | None = None,
    ) -> None:
        """Prepare a batch.

        Args:
            run: its context.
            completions: of the flow run.
            check: is called while tasks are waited for; default: look for lost devices.
        """
        self._run = run
        self._completions = completions
        self._check = check or require_devices
        self._labels: dict[UUID, tuple[str, str]] = {}  # task and where it runs, for errors

    def submit(
        self,
        task: Any,
        label: str,
        where: str,
        *arguments: Any,
        expected: float | None = None,
        **parameters: Any,
    ) -> PrefectFuture[Any]:
        """Submit a task that takes run id, label and what else is given.

        Args:
            task: of Prefect.
            label: name of the task run.
            where: a device of the run, another worker, or a pool that the config names.
            *arguments: of the task.
            expected: seconds that it should take; None: nobody knows.
            **parameters: of the task.
        """
        run = self._run
        place: dict[str, Any] = {"resources": {where: 1}}
        if where not in run.fleet.pools:  # a worker that is started again has the name of the lost
            place = {"workers": [run.fleet.addresses.get(where, where)]}
        with dask.annotate(**place):
            future: PrefectFuture[Any] = task.submit(run.run_id, label, *arguments, **parameters)
        self._labels[future.task_run_id] = (label, where)
        run.watch.begin(future.task_run_id, label, expected)
        return future

    @property
    def num_pending(self) -> int:
        """Number of tasks whose receipts were not read."""
        return len(self._labels)

    def next(self) -> tuple[UUID, dict[str, Any]]:
        """Wait for the next task to end; return its id and its receipt.

        Raises:
            DevicesLostError: devices were lost.
            TaskFailedError: the task failed.
            RunCancelledError: somebody stopped the run.
        """
        while True:
            self._run.control.check()
            self._check(self._run)
            try:
                completion = self._completions.next(timeout=POLL_SECONDS)
            except TimeoutError:
                continue
            task_run_id = completion.task_run_id
            if task_run_id not in self._labels:  # forgotten
                continue
            label, where = self._labels.pop(task_run_id)
            self._run.watch.end([task_run_id])
            if not completion.succeeded:
                require_devices(self._run, now=True)  # it may have gone with its worker
            require_success(completion, label, where)
            return task_run_id, completion.receipt

    def forget(self, task_run_ids: Iterable[UUID]) -> None:
        """Wait no more for tasks; whatever still comes of them is ignored."""
        for task_run_id in task_run_ids:
            self._labels.pop(task_run_id, None)
        self._run.watch.end(task_run_ids)

    def receipts(self, *, counted: bool = False) -> dict[UUID, dict[str, Any]]:
        """Wait for all tasks; return their receipts by task run id.

        Args:
            counted: notify the observers how many there are.

        Raises:
            Exception: what ``next`` raises; then those that are still pending stay so.
        """
        found: dict[UUID, dict[str, Any]] = {}
        total = self.num_pending
        while self.num_pending:
            if counted:
                count(len(found), total)
            task_run_id, receipt = self.next()
            found[task_run_id] = receipt
        return found


def require_devices(run: RunContext, *, now: bool = False) -> None:
    """Look for lost devices, if it is time.

    Raises:
        DevicesLostError: some were lost.
    """
    before = {device.name for device in run.fleet.devices}
    _ = look(run) if now else look_if_due(run)
    if lost := before - {device.name for device in run.fleet.devices}:
        raise DevicesLostError(lost)


def require_success(completion: Completion, label: str, where: str) -> None:
    """Raise what a person can act on if a task did not succeed.

    Raises:
        UserError: because of what the user asked for, as the worker found.
        DamagedError: because a checkpoint is damaged.
        TaskFailedError: for another reason, which the message gives.
    """
    if completion.succeeded:
        return
    if completion.state_type == "CRASHED":
        mark_crashed(completion)
    for error in (DamagedError, UserError):  # the one is the other, too
        if f"{error.__module__}.{error.__qualname__}" in completion.error_types:
            raise error(completion.error_text)
    message = completion.message.removeprefix("Task run encountered an exception ")
    raise TaskFailedError(f"{label} on {where} failed: {message}")
