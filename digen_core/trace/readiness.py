"""Readiness: the moment at which a task had all it needed, judged by the spans before it.

Spans hold no edges, so a task's inputs are known by its kind and by what its span names. A layout
may hold a task back although its inputs exist (a barrier): the controller asks for it at the event
that lets it go, so the last such event before it was asked for counts as an input as well. Kinds
that take no time in a simulation have no spans there; then those before them stand for them.

    kind        its inputs                                            what a layout may wait for
    encode      -                                                     -
    denoise,    encodes of its iteration, the steps before it,        a load of a version
    samples     the load of its version on its device
    score       its fragment's steps                                  steps of its iteration
    train       the load of its version on its device                 scores of its iteration,
                                                                      or else its steps
    reduce      the packs of its iteration                            -
    step        the reduce of its iteration                           -
    publish     the step of its iteration                             -
"""

from bisect import bisect_right
from collections.abc import Iterable
from typing import Final

from digen_core.records import GENERATING, Span

_Key = tuple[str | int, ...]

_EVENTS: Final = {
    "score": ("denoise",),
    "train": ("score", "denoise"),
}
"""Kind -> kinds of the same iteration whose end may let it go; the first that has spans counts."""


class Readiness:
    """Answers for the tasks of a run. Clocks of devices and flow must agree to a message's time."""

    def __init__(self, spans: Iterable[Span]) -> None:
        self._ends: dict[_Key, list[float]] = {}
        for span in spans:
            for key in _keys(span):
                self._ends.setdefault(key, []).append(span.ended)
        for ends in self._ends.values():
            ends.sort()

    def ready(self, task: Span) -> float:
        """Return when a task could have started: its inputs' last end, else when it was asked for.

        Never after it started.
        """
        inputs = [self._ends[key] for key in _inputs(task) if -1 not in key and key in self._ends]
        # the last one that ended before: an iteration may be reduced and stepped several times
        ends = [own[max(bisect_right(own, task.started) - 1, 0)] for own in inputs]
        events = next((self._ends[key] for key in _events(task) if key in self._ends), [])
        if known := bisect_right(events, task.queued):
            ends.append(events[known - 1])
        return min(max(ends, default=task.queued), task.started)


def _keys(span: Span) -> list[_Key]:
    """Return the names under which other tasks look for a span."""
    kind, iteration = _role(span), span.iteration
    if kind == "push":
        return [("push",), ("push", span.device, span.version)]
    keys: list[_Key] = [(kind, iteration)]
    if span.group >= 0:
        keys.append((kind, iteration, span.group))
    for fragment in span.fragments:
        keys.append((kind, iteration, *fragment))
        keys.append((kind, iteration, *fragment, span.end_step))
    return keys


def _inputs(task: Span) -> list[_Key]:
    iteration, fragments = task.iteration, task.fragments
    load: _Key = ("push", task.device, task.version)
    inputs: dict[str, list[_Key]] = {
        "denoise": [
            ("encode", iteration),
            *(("denoise", iteration, *own, task.first_step) for own in fragments),
            load,
        ],
        "score": [("denoise", iteration, *own) for own in fragments],
        "train": [load],
        "reduce": [("train", iteration)],
        "step": [("reduce", iteration)],
        "copy": [("step", iteration)],
        "publish": [("step", iteration)],
    }
    return inputs.get(_role(task), [])


def _role(span: Span) -> str:
    """Return the kind whose place a span's kind takes: what encodes samples is as what denoises."""
    return "denoise" if span.kind in GENERATING else span.kind


def _events(task: Span) -> list[_Key]:
    if task.kind in GENERATING:
        return [("push",)]
    return [(kind, task.iteration) for kind in _EVENTS.get(task.kind, ())]
