"""Task sets: tasks that need no controller, such as loading, evaluating and exporting."""

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Generic, Self
from uuid import UUID

import dask
from prefect.futures import PrefectFuture

from digen_core.checkpoints.manifest import DamagedError
from digen_core.errors import UserError
from flows.runtime.context import RunContext
from flows.runtime.fleet.losses import DevicesLostError, look, look_if_due
from flows.runtime.fleet.watch import Seen
from flows.runtime.observers import count
from tasks.body import Body
from tasks.gang.messages import GangBrokenError
from tasks.receipts import Facts, FactsT, FactsT_co, Receipt, ReceiptError
from tasks.runner.completions import Completion, Completions, mark_crashed
from tasks.unanswered import UNANSWERED

POLL_SECONDS = 1.0


class TaskFailedError(RuntimeError):
    """A task of the run failed; the message names the task, its worker and the error."""


@dataclass(eq=False, slots=True)
class Submitted(Generic[FactsT_co]):
    """A task of a set."""

    body: Body[..., object, FactsT_co]
    label: str  # name of the task run
    where: str  # it was sent to
    future: PrefectFuture[Any]
    address: str = ""  # where, if that is no device of the run and no pool
    receipt: Receipt[FactsT_co] | None = None  # None: it has not ended

    @property
    def facts(self) -> FactsT_co:
        """What it found, now that it has ended."""
        assert self.receipt is not None, f"{self.label} has not ended"
        return self.receipt.facts

    def end(self, completion: Completion) -> None:
        """Read the receipt; raises what `receipt_of` does."""
        self.receipt = receipt_of(completion, self.body, self.label, self.where)


class TaskSet:
    """Tasks of one flow run, each on a device or in a pool, watched until their receipts are read.

    Use it inside the ``Completions`` block in which the tasks are submitted.
    """

    def __init__(
        self,
        run: RunContext,
        completions: Completions,
        check: Callable[..., Seen | None] | None = None,
    ) -> None:
        """Prepare an empty set.

        Args:
            run: its context.
            completions: of the flow run.
            check: is called while tasks are waited for, and with ``now`` when one has failed;
                returns what it saw of the cluster, if it looked. Default: look for lost devices.
        """
        self._run = run
        self._completions = completions
        self._check = check or require_devices
        self._pending: dict[UUID, Submitted[Facts]] = {}
        self._failed: Completion | None = None  # with devices that were lost, perhaps for that

    def submit(
        self,
        body: Body[..., object, FactsT],
        label: str,
        where: str,
        *arguments: object,
        expected: float | None = None,
        **parameters: object,
    ) -> Submitted[FactsT]:
        """Submit a task that takes run id, label and what else is given.

        Args:
            body: of the task.
            label: name of the task run.
            where: a device of the run, the address of another worker, or a pool that the config
                names.
            *arguments: of the body.
            expected: seconds that it should take; None: nobody knows.
            **parameters: of the body.
        """
        run = self._run
        place: dict[str, Any] = {"resources": {where: 1}}
        if where not in run.fleet.pools:  # a worker that is started again has the name of the lost
            place = {"workers": [run.fleet.addresses.get(where, where)]}
        address = "" if where in run.fleet.pools or where in run.fleet.addresses else where
        with dask.annotate(**place):
            task = body.task
            future: PrefectFuture[Any] = task.submit(run.run_id, label, *arguments, **parameters)
        submitted = Submitted(body, label, where, future, address)
        self._pending[future.task_run_id] = submitted
        run.watch.begin(future.task_run_id, label, expected)
        return submitted

    def __enter__(self) -> Self:
        """Return it; what is pending at the end of the block nobody waits for."""
        return self

    def __exit__(self, *_: object) -> None:
        """Give up what is pending."""
        self._run.watch.give_up(self._pending)

    @property
    def num_pending(self) -> int:
        """Number of tasks whose receipts were not read."""
        return len(self._pending)

    def next(self) -> Submitted[Facts]:
        """Wait for the next task to end and return it, with its receipt.

        It has none if it was sent to an address where there is no worker any more.

        Raises:
            DevicesLostError: devices were lost.
            TaskFailedError: the task failed, or its receipt cannot be read.
            RunCancelledError: somebody stopped the run.
        """
        while True:
            self._run.control.check()
            seen = self._check(self._run)
            if seen is not None and (gone := self._gone(seen)) is not None:
                self.forget([gone])
                return gone
            try:
                completion = self._failed or self._completions.next(timeout=POLL_SECONDS)
            except TimeoutError:
                continue
            self._failed = None
            task_run_id = completion.task_run_id
            if task_run_id not in self._pending:  # forgotten
                continue
            submitted = self._pending[task_run_id]
            if not completion.succeeded:
                require_no_culprit(completion)
                note_broken_gang(self._run, completion, submitted.where)
                self._failed = completion  # told next, unless it is forgotten for what is lost
                self._check(self._run, now=True)  # it may have gone with its worker
            self._failed = None
            self.forget([submitted])
            submitted.end(completion)
            return submitted

    def _gone(self, seen: Seen) -> Submitted[Facts] | None:
        """Return a task at an address where there is no worker: Dask would wait for one there."""
        return next(
            (
                own
                for own in self._pending.values()
                if own.address and own.address not in seen.workers
            ),
            None,
        )

    def forget(self, tasks: Iterable[Submitted[Facts]]) -> None:
        """Wait no more for tasks; whatever still comes of them is ignored."""
        task_run_ids = [task.future.task_run_id for task in tasks]
        for task_run_id in task_run_ids:
            self._pending.pop(task_run_id, None)
        self._run.watch.end(task_run_ids)

    def wait(self, *, counted: bool = False) -> None:
        """Wait for all tasks.

        Args:
            counted: notify the observers how many there are.

        Raises:
            Exception: what ``next`` raises; then those that are still pending stay so.
        """
        total = self.num_pending
        while self.num_pending:
            if counted:
                count(total - self.num_pending, total)
            self.next()


def require_no_culprit(completion: Completion) -> None:
    """Check that a task did not fail of what a person can act on, which loses no worker.

    It comes before a look at the cluster: members of a gang end when one of them has failed.

    Raises:
        UserError: it failed because of what the user asked for, as the worker found.
        DamagedError: because a checkpoint is damaged.
    """
    for error in (DamagedError, UserError):  # the one is the other, too
        if _named(error) in completion.error_types:
            raise error(completion.error_text)


def note_broken_gang(run: RunContext, completion: Completion, device: str) -> None:
    """Let the next look find a device lost if its task failed because its gang is broken."""
    if _named(GangBrokenError) in completion.error_types and device in run.fleet.addresses:
        why = f"is a gang that cannot go on: {completion.error_text}"
        run.watch.broken(run.fleet.addresses[device], why)


def _named(error: type[Exception]) -> str:
    return f"{error.__module__}.{error.__qualname__}"


def require_devices(run: RunContext, *, now: bool = False) -> Seen | None:
    """Look for lost devices, if it is time; return what was seen then.

    Raises:
        DevicesLostError: some were lost.
    """
    before = run.fleet.names
    seen = look(run) if now else look_if_due(run)
    if lost := before - run.fleet.names:
        raise DevicesLostError(lost)
    return seen


def receipt_of(
    completion: Completion, body: Body[..., object, FactsT], label: str, where: str
) -> Receipt[FactsT]:
    """Return the receipt of a task.

    Raises:
        UserError: the task failed because of what the user asked for.
        DamagedError: it failed because a checkpoint is damaged.
        TaskFailedError: it failed for another reason, or its receipt is not one of its kind.
    """
    _require_success(completion, label, where)
    try:
        return body.read(completion.receipt)
    except ReceiptError as error:
        raise TaskFailedError(
            f"{label} on {where} sent a receipt that cannot be used: {error}"
        ) from error


def _require_success(completion: Completion, label: str, where: str) -> None:
    """Raise what a person can act on if a task did not succeed.

    Raises:
        UserError: because of what the user asked for, as the worker found.
        DamagedError: because a checkpoint is damaged.
        TaskFailedError: for another reason, which the message gives.
    """
    if completion.succeeded:
        return
    if completion.state_type == "CRASHED":
        with suppress(*UNANSWERED):  # Prefect shows it as running then
            mark_crashed(completion)
    require_no_culprit(completion)
    message = completion.message.removeprefix("Task run encountered an exception ")
    raise TaskFailedError(f"{label} on {where} failed: {message}")
