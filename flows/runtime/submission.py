"""Submit a task in the flow run of its iteration, and read its receipt when it ends."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import nan
from time import time
from typing import Any, Generic, TypedDict
from uuid import UUID

import dask
from prefect.futures import PrefectFuture

from digen_core.control.protocol import Event
from digen_core.planning.predict import expected_seconds
from digen_core.records import Span, SpanKind
from flows.runtime.context import RunContext
from flows.runtime.fleet.task_set import receipt_of
from flows.runtime.iterations.open_iteration import OpenIteration
from tasks.body import Body
from tasks.receipts import FactsT, Receipt
from tasks.runner.completions import Completion, give_up, mark_lost

URGENT = 1000  # above all fragments and packs: what others wait for


class About(TypedDict, total=False):
    """Fields of a span that say what its work is about."""

    group: int
    fragment: int
    first_step: int
    end_step: int
    version: int
    num_items: int
    cost: float
    beside: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Work(Generic[FactsT]):
    """A task to submit for a device, and what its receipt will mean."""

    body: Body[..., object, FactsT]
    label: str  # name of the task run
    device: str  # where it runs, or for whom: its result is dropped if this one is lost
    kind: SpanKind
    about: About = field(default_factory=About)
    parameters: Mapping[str, object]  # of the body; futures become edges of the graph
    event_of: Callable[[Receipt[FactsT]], Event | Sequence[Event] | None] = field(
        default=lambda receipt: None, repr=False
    )
    """What the controller is told of the receipt; None: nothing."""
    priority: int = URGENT  # among the tasks that wait on the device; the highest is first
    resource: str | None = None  # it runs on any worker that declares this, not on the device
    takes_from: frozenset[str] = frozenset()
    """Devices that hold what it takes: if one is lost, its result is dropped, too."""
    lasts: bool = False
    """Nobody knows how long it takes, as of loading: it is not soon taken for one that hangs."""


@dataclass(frozen=True, slots=True)
class _Running:
    span: Span  # without its times
    iteration: OpenIteration
    device: str  # for which it was submitted
    devices: frozenset[str]  # this, and those that hold what it takes, if it is void without them
    future: PrefectFuture[Any]
    end: Callable[[Completion], list[Event]]


class Submitter:
    """The tasks of a run that were submitted and have not ended."""

    def __init__(self, run: RunContext) -> None:
        self._run = run
        self._running: dict[UUID, _Running] = {}

    @property
    def num_running(self) -> int:
        """How many tasks those are."""
        return len(self._running)

    def is_running(self, iteration: OpenIteration) -> bool:
        """Say whether some of them show in an iteration's flow run."""
        return any(running.iteration is iteration for running in self._running.values())

    def submit(self, iteration: OpenIteration, work: Work[FactsT]) -> PrefectFuture[Any]:
        """Submit a task, which shows in the flow run of an iteration, and return its future."""
        workers = self._run.workers
        task = workers.body(work.body).task
        place: dict[str, Any]
        if work.resource is None:
            worker, resources = workers.place(work.kind, work.device)
            # A worker that is started again has the name of the lost one, but not its model.
            address = self._run.fleet.addresses.get(worker, worker)
            place = {"workers": [address], "resources": resources}
        else:
            worker, place = work.resource, {"resources": {work.resource: 1}}

        def submit() -> PrefectFuture[Any]:
            with dask.annotate(**place, priority=work.priority):
                future: PrefectFuture[Any] = task.submit(
                    self._run.run_id, work.label, **work.parameters
                )
                return future

        span = Span(iteration.index, work.label, work.kind, worker, time(), nan, nan, **work.about)
        future = iteration.context.run(submit)
        self._run.trace.begin(span)
        self._running[future.task_run_id] = _Running(
            span,
            iteration,
            work.device,
            work.takes_from | {work.device},
            future,
            lambda ended: self._end(iteration, work, span, ended),
        )
        expected = None if work.lasts else self._expected(span, work.device)
        self._run.watch.begin(future.task_run_id, work.label, expected)
        return future

    def _expected(self, span: Span, device: str) -> float | None:
        """Return the seconds that a task should take; None where compiling may take minutes."""
        if self._run.config.model.compile:
            return None
        kind = self._run.fleet.known[device].kind
        return expected_seconds(self._run.progress.known_costs, kind, span)

    def events_of(self, completion: Completion) -> list[Event]:
        """Return what the end of a task means to the controller.

        Raises:
            TaskFailedError: the task failed, or its receipt cannot be read.
        """
        running = self._running.pop(completion.task_run_id, None)
        # If there is none, it was on a device that was lost.
        return [] if running is None else running.end(completion)

    def _end(
        self, iteration: OpenIteration, work: Work[FactsT], asked: Span, completion: Completion
    ) -> list[Event]:
        self._run.watch.end([completion.task_run_id])
        receipt = receipt_of(completion, work.body, asked.task, asked.device)
        ran = receipt.ran
        span = replace(
            asked,
            device=ran.device,
            started=ran.started,
            ended=ran.ended,
            num_bytes=ran.num_bytes,
            compile_seconds=ran.compile_seconds,
            num_items=0 if getattr(receipt.facts, "too_large", False) else asked.num_items,
        )
        self._run.trace.end(asked, span)
        iteration.recorder.add_span(span)
        pushed = span.version if span.kind == "push" else None
        iteration.recorder.add_received(work.device, ran.received, pushed)
        if ran.usage is not None:
            iteration.recorder.add_usage(span.device, ran.usage)
        found = work.event_of(receipt)
        if found is None:
            return []
        return list(found) if isinstance(found, Sequence) else [found]

    def device_of(self, completion: Completion) -> str | None:
        """Return the device for which a task was submitted; None if it is waited for no more."""
        running = self._running.get(completion.task_run_id)
        return running.device if running else None

    def is_pushing(self, device: str) -> bool:
        """Say whether a device is about to load a version."""
        own = (run.span for run in self._running.values() if run.device == device)
        return any(span.kind == "push" for span in own)

    def stop(self) -> None:
        """Wait for no task any more, as the run ends, or goes back to a checkpoint."""
        self._run.watch.give_up(self._running)

    def forget(self, devices: Collection[str], kinds: Collection[SpanKind] = ()) -> None:
        """Wait no more for the tasks of lost devices; whatever still comes of them is ignored.

        Args:
            devices: that are lost.
            kinds: of tasks on any device that are void with them.
        """
        gone = frozenset(devices)
        void = {id_: own.future for id_, own in self._running.items() if own.span.kind in kinds}
        give_up(void.values())
        lost = [id_ for id_, own in self._running.items() if own.devices & gone or id_ in void]
        for task_run_id in lost:
            self._run.trace.forget(self._running.pop(task_run_id).span)
        self._run.watch.end(lost)
        mark_lost(lost)
