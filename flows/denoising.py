"""Generate fragments as chains of denoise tasks that can be paused between two of them."""

from dataclasses import dataclass
from typing import Any

from digen_core.control.protocol import (
    Event,
    Fragment,
    FragmentGenerated,
    FragmentPaused,
    Generate,
)
from flows.conditions import Conditions
from flows.open_iteration import OpenIteration
from flows.submitter import Submitter
from tasks.rollout import denoise_steps

LOOK_AHEAD = 2  # tasks of a fragment that are submitted: one runs, the other is ready to


@dataclass(slots=True)
class _Underway:
    do: Generate
    next_step: int  # the first one that is in no task yet
    num_running: int = 0
    is_paused: bool = False


class Denoising:
    """The fragments that devices are generating."""

    def __init__(self, submitter: Submitter, conditions: Conditions) -> None:
        self._submitter = submitter
        self._conditions = conditions
        self._underway: dict[Fragment, _Underway] = {}

    def begin(self, iteration: OpenIteration, do: Generate) -> None:
        """Submit the first tasks; each that ends is followed by another."""
        if do.first_step == 0:
            iteration.segments[do.fragment] = []
        underway = self._underway[do.fragment] = _Underway(do, do.first_step)
        for _ in range(LOOK_AHEAD):
            self._submit_next(iteration, underway)

    def pause(self, fragment: Fragment) -> None:
        """Submit no more tasks of a fragment."""
        self._underway[fragment].is_paused = True

    def forget(self, device: str) -> None:
        """Drop what a lost device was generating."""
        kept = {
            f: underway for f, underway in self._underway.items() if underway.do.device != device
        }
        self._underway = kept

    def _submit_next(self, iteration: OpenIteration, underway: _Underway) -> None:
        do, first = underway.do, underway.next_step
        if underway.is_paused or first == do.end_step:
            return
        steps = range(first, min(first + iteration.steps_per_task, do.end_step))
        segments = iteration.segments[do.fragment]
        future = self._submitter.submit(
            iteration,
            denoise_steps,
            f"denoise g{do.fragment.group:02d} f{do.fragment.index} t{_name_of(steps)}",
            do.device,
            lambda receipt: self._on_denoised(iteration, underway, steps, receipt),
            kind="denoise",
            about={
                **about(do.fragment),
                "first_step": steps.start,
                "end_step": steps.stop,
                "version": do.version,
            },
            priority=iteration.round.priority_of(do.fragment.group, do.fragment.index),
            fragment=do.fragment,
            steps=steps,
            noisy_steps=iteration.round.trained_steps,
            version=do.version,
            condition=self._conditions.of(iteration, do.fragment.group, do.device),
            previous=segments[-1][1] if segments else None,
        )
        segments.append((steps, future))
        underway.next_step = steps.stop
        underway.num_running += 1

    def _on_denoised(
        self, iteration: OpenIteration, underway: _Underway, steps: range, receipt: dict[str, Any]
    ) -> Event | None:
        fragment = underway.do.fragment
        iteration.recorder.add_logprobs(fragment, receipt)
        underway.num_running -= 1
        self._submit_next(iteration, underway)
        if underway.num_running:
            return None
        del self._underway[fragment]
        if steps.stop == underway.do.end_step:
            return FragmentGenerated(fragment)
        return FragmentPaused(fragment, steps.stop)


def about(fragment: Fragment) -> dict[str, int]:
    """Return the fields of a span that name a fragment."""
    return {
        "group": fragment.group,
        "fragment": fragment.index,
        "num_items": fragment.num_samples,
    }


def _name_of(steps: range) -> str:
    if len(steps) == 1:
        return f"{steps.start:02d}"
    return f"{steps.start:02d}-{steps.stop - 1:02d}"
