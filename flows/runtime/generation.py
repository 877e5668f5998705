"""Generate batches as chains of denoise tasks that can be paused between two of them."""

from collections.abc import Collection
from dataclasses import dataclass

from digen_core.control.protocol import (
    Batch,
    BatchGenerated,
    BatchLate,
    BatchPaused,
    Event,
    Fragment,
    Generate,
)
from digen_core.control.schedule import LATE
from digen_core.records import SpanKind
from digen_core.rollout.sampling import Sampling
from digen_core.rollout.steps import steps_of_group
from flows.runtime.conditions import Conditions
from flows.runtime.context import RunContext
from flows.runtime.iterations.open_iteration import OpenIteration, once
from flows.runtime.notify import notify_of_parts, notify_of_unlike_batches
from flows.runtime.submission import About, Submitter, Work
from tasks.body import Body
from tasks.receipts import Denoised, Receipt
from tasks.rollout import denoise_steps
from tasks.samples import encode_samples

LOOK_AHEAD = 2  # tasks of a device that are submitted: one runs, the other is ready to


@dataclass(slots=True)
class _Underway:
    iteration: OpenIteration
    do: Generate
    next_step: int  # the first one that is in no task yet
    num_running: int = 0
    is_paused: bool = False
    is_late: bool = False

    @property
    def is_submitted(self) -> bool:
        """Whether no more tasks follow."""
        return self.is_paused or self.next_step == self.do.end_step


class Denoising:
    """The batches that devices are generating, each device one after the other.

    Dask would run two chains of tasks in turn: when a task ends, its successor is still on its way.
    Then both batches are late, and with them their groups.
    """

    def __init__(self, run: RunContext, submitter: Submitter, conditions: Conditions) -> None:
        self._run = run
        self._submitter = submitter
        self._conditions = conditions
        self._underway: dict[Batch, _Underway] = {}

    def begin(self, iteration: OpenIteration, do: Generate) -> None:
        """Generate a batch when the device's other ones are done."""
        for fragment in do.batch.fragments if do.first_step == 0 else ():
            iteration.segments[fragment] = []
        self._underway[do.batch] = _Underway(iteration, do, do.first_step)
        self._fill(do.device)

    def pause(self, batch: Batch) -> None:
        """Submit no more tasks of a batch than the one that tells how far it is."""
        underway = self._underway[batch]
        if not underway.num_running:
            self._submit_next(underway)
        underway.is_paused = True

    def forget(self, devices: Collection[str]) -> None:
        """Drop what lost devices were generating."""
        kept = {b: own for b, own in self._underway.items() if own.do.device not in devices}
        self._underway = kept

    def _fill(self, device: str) -> None:
        """Submit the next tasks of a device, as many as it looks ahead."""
        own = [underway for underway in self._underway.values() if underway.do.device == device]
        room = LOOK_AHEAD - sum(underway.num_running for underway in own)
        for underway in own:
            while room > 0 and not underway.is_submitted:
                self._submit_next(underway)
                room -= 1

    def _submit_next(self, underway: _Underway) -> None:
        iteration, do, first = underway.iteration, underway.do, underway.next_step
        steps = range(first, min(first + iteration.steps_per_task, do.end_step))
        body, kind, label, parameters = self._task_of(iteration, do, steps)
        fragments = do.batch.fragments
        conditions = [self._conditions.of(iteration, own.group, do.device) for own in fragments]
        work = Work(
            body=body,
            label=label,
            device=do.device,
            kind=kind,
            about={
                **about(fragments[0]),
                "num_items": do.batch.num_samples,
                "beside": tuple((own.group, own.index) for own in fragments[1:]),
                "first_step": steps.start,
                "end_step": steps.stop,
                "version": do.version,
            },
            parameters={
                "steps": steps,
                "version": do.version,
                "conditions": once(conditions),
                "run_dir": self._run.shared_dir,
                **parameters,
            },
            event_of=lambda receipt: self._on_denoised(underway, steps, receipt),
            priority=iteration.round.priority_of(fragments[0].group, fragments[0].index),
        )
        future = self._submitter.submit(iteration, work)
        for fragment in fragments:
            iteration.segments[fragment].append((steps, future))
        underway.next_step = steps.stop
        underway.num_running += 1

    def _task_of(
        self, iteration: OpenIteration, do: Generate, steps: range
    ) -> tuple[Body[..., object, Denoised], SpanKind, str, dict[str, object]]:
        """Return what runs steps of a batch: body, kind of span, label, own parameters.

        Where samples come from files one task takes the place of all steps.
        """
        first = do.batch.fragments[0]
        samples = iteration.round.prompts[first.group].samples
        if samples:
            height, width, _ = self._run.config.size_of(iteration.index, first.group)
            parameters: dict[str, object] = {
                "fragment": first,
                "key": self._conditions.key_of(iteration, first.group),
                "images": [samples[own].shrunk(height, width) for own in first.samples],
            }
            return encode_samples, "samples", f"encode samples {do.batch.name}", parameters
        made = [iteration.segments[own] for own in do.batch.fragments]
        parameters = {
            "batch": [self._sampling(iteration, own) for own in do.batch.fragments],
            "previous": once([own[-1][1] for own in made if own]),
        }
        return denoise_steps, "denoise", f"denoise {do.batch.name} t{_name_of(steps)}", parameters

    def _sampling(self, iteration: OpenIteration, fragment: Fragment) -> Sampling:
        """Return how a fragment is denoised."""
        return Sampling(
            fragment,
            self._conditions.key_of(iteration, fragment.group),
            self._noisy_steps(iteration, fragment),
            iteration.origin_of(fragment),
        )

    def _noisy_steps(self, iteration: OpenIteration, fragment: Fragment) -> tuple[int, ...]:
        """Return the steps of a fragment with noise: of candidates those of their samples, if any.

        With fewer steps they have none.
        """
        group, screening = fragment.group, self._run.config.rollout.screening
        if screening is not None and iteration.round.screens(group):
            if screening.num_steps is not None:
                return ()
            group = iteration.round.samples_of(group)
        return steps_of_group(self._run.config, iteration.index, group, fragment.num_steps).noisy

    def _on_denoised(
        self, underway: _Underway, steps: range, receipt: Receipt[Denoised]
    ) -> Event | None:
        batch = underway.do.batch
        if receipt.facts.num_parts > 1:
            notify_of_parts(self._run, underway.do.device, batch.num_samples)
        if receipt.facts.num_apart > 1:
            notify_of_unlike_batches(self._run)
        underway.iteration.recorder.add_sampled(batch, receipt)
        underway.num_running -= 1
        self._fill(underway.do.device)
        if underway.num_running:
            return self._late(underway, steps, receipt)
        del self._underway[batch]
        if steps.stop == underway.do.end_step:
            return BatchGenerated(batch)
        return BatchPaused(batch, steps.stop)

    def _late(
        self, underway: _Underway, steps: range, receipt: Receipt[Denoised]
    ) -> BatchLate | None:
        """Return what tells, once, that steps take longer than predicted, if some are left.

        Of a batch whose samples were not alike nothing is predicted.
        """
        batch, do = underway.do.batch, underway.do
        costs = self._run.progress.known_costs.kinds.get(self._run.fleet.known[do.device].kind)
        is_told = underway.is_late or underway.is_submitted
        if costs is None or is_told or receipt.facts.num_apart > 1:
            return None
        compiling = receipt.ran.compile_seconds / len(steps)
        seconds = receipt.facts.seconds_per_step - compiling
        pace = seconds / max(costs.step(batch.num_samples, batch.cost), 1e-12)
        if pace < LATE:
            return None
        underway.is_late = True
        return BatchLate(batch, pace)


def about(fragment: Fragment) -> About:
    """Return the fields of a span that name a fragment."""
    return {
        "group": fragment.group,
        "fragment": fragment.index,
        "num_items": fragment.num_samples,
        "cost": fragment.cost,
    }


def _name_of(steps: range) -> str:
    if len(steps) == 1:
        return f"{steps.start:02d}"
    return f"{steps.start:02d}-{steps.stop - 1:02d}"
