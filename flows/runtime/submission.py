"""Submit a task in the flow run of its iteration, and read its receipt when it ends."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from math import nan
from time import time
from typing import Any
from uuid import UUID

import dask
from prefect.futures import PrefectFuture

from digen_core.control.protocol import Event
from digen_core.planning.predict import expected_seconds
from digen_core.records import Span, SpanKind
from digen_core.trace.usage import Usage
from flows.runtime.context import RunContext
from flows.runtime.fleet.batch import require_success
from flows.runtime.iterations.open_iteration import OpenIteration
from tasks.runner.completions import Completion, mark_lost

URGENT = 1000  # above all fragments and packs: what others wait for

EventOf = Callable[[dict[str, Any]], Event | None]


@dataclass(frozen=True, slots=True)
class _Running:
    span: Span  # without its times
    iteration: OpenIteration
    event_of: EventOf
    device: str  # for which it was submitted


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

    def submit(
        self,
        iteration: OpenIteration,
        task: Any,
        label: str,
        device: str,
        event_of: EventOf = lambda receipt: None,
        *,
        kind: SpanKind,
        about: Mapping[str, int],
        priority: int = URGENT,
        resource: str | None = None,
        **parameters: Any,
    ) -> PrefectFuture[Any]:
        """Submit a task and return its future.

        Args:
            iteration: in whose flow run the task shows.
            task: a Prefect task that takes run id, label and ``parameters``.
            label: name of the task run.
            device: where it runs, or for whom: its result is dropped if this one is lost.
            event_of: says what its receipt means to the controller.
            kind: of its span.
            about: other fields of its span.
            priority: among the tasks that wait on the device; the highest is first.
            resource: The task runs on any worker that declares this one, and not on the device.
            **parameters: of the task; futures become edges of the graph.
        """
        workers = self._run.workers
        body = workers.body(task)
        place: dict[str, Any]
        if resource is None:
            worker, resources = workers.place(kind, device)
            # A worker that is started again has the name of the lost one, but not its model.
            address = self._run.fleet.addresses.get(worker, worker)
            place = {"workers": [address], "resources": resources}
        else:
            worker, place = resource, {"resources": {resource: 1}}

        def submit() -> PrefectFuture[Any]:
            with dask.annotate(**place, priority=priority):
                future: PrefectFuture[Any] = body.submit(self._run.run_id, label, **parameters)
                return future

        span = Span(iteration.index, label, kind, worker, time(), nan, nan, **about)
        future = iteration.context.run(submit)
        self._run.trace.begin(span)
        self._running[future.task_run_id] = _Running(span, iteration, event_of, device)
        self._run.watch.begin(future.task_run_id, label, self._expected(span, device))
        return future

    def _expected(self, span: Span, device: str) -> float | None:
        """Return the seconds that a task should take; None where compiling may take minutes."""
        if self._run.config.model.compile:
            return None
        kind = self._run.fleet.known[device].kind
        return expected_seconds(self._run.progress.known_costs, kind, span)

    def event_of(self, completion: Completion) -> Event | None:
        """Return what the end of a task means to the controller; None if nothing.

        Raises:
            TaskFailedError: the task failed.
        """
        running = self._running.pop(completion.task_run_id, None)
        if running is None:  # it was on a device that was lost
            return None
        asked, receipt = running.span, completion.receipt
        self._run.watch.end([completion.task_run_id])
        require_success(completion, asked.task, asked.device)
        span = replace(
            asked,
            device=receipt["device"],
            started=receipt["started"],
            ended=receipt["ended"],
            num_bytes=receipt["num_bytes"],
            compile_seconds=receipt.get("compile_seconds", 0.0),
        )
        self._run.trace.end(asked, span)
        running.iteration.recorder.add_span(span)
        if used := receipt.get("usage"):
            running.iteration.recorder.add_usage(span.device, Usage(**used))
        return running.event_of(receipt)

    def is_pushing(self, device: str) -> bool:
        """Say whether a device is about to load a version."""
        own = (run.span for run in self._running.values() if run.device == device)
        return any(span.kind == "push" for span in own)

    def forget(self, devices: Collection[str]) -> None:
        """Wait no more for the tasks of lost devices; whatever still comes of them is ignored."""
        lost = [id_ for id_, running in self._running.items() if running.device in devices]
        for task_run_id in lost:
            self._run.trace.forget(self._running.pop(task_run_id).span)
        self._run.watch.end(lost)
        mark_lost(lost)
