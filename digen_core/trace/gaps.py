"""Idle gaps of devices and their causes: each moment without work has exactly one.

A device is busy while any span runs on it, but not by a push or a switch alone: those make it ready
for work. The first rule that holds at a moment names the cause. "Its next task" is the next work of
the device, in whatever iteration; k is the iteration of that task.

    cause          holds while
    switch         the device switches to another role
    push           the device loads a version
    orchestration  its next task has all inputs (see readiness.py)
    push           an optimizer step has begun whose version this device has not loaded yet
    orchestration  nothing runs on any device
    ---            if its next task is training (train, reduce, step, copy, publish):
    tail           an iteration before k trains
    fill           k is being generated, and no pack of k has started anywhere
    starvation     k is being generated, and packs of k have started
    reward         k is scored
    ---            otherwise, and where none of these holds:
    tail           others generate what comes before its next task, or train
    reward         others score
    push           others make or load a version
    switch         others switch
    fill           others make its first inputs

A device with no task left in the spans counts as waiting for an iteration after all of them.
"""

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, get_args

from digen_core.control.protocol import Device
from digen_core.records import GENERATING, Span
from digen_core.trace.kinds import READYING, SPAN_KINDS, TRAINING
from digen_core.trace.readiness import Readiness
from digen_core.trace.windows import Union, Window, extent

Cause = Literal["fill", "starvation", "reward", "tail", "push", "switch", "orchestration"]
CAUSES: Final[tuple[Cause, ...]] = get_args(Cause)

NEVER: Final = Union()

_Running = frozenset[tuple[str, int]]  # (stage, iteration) of what runs at a moment, on any device


@dataclass(frozen=True, slots=True)
class Gap:
    """A stretch in which a device did no work, for one cause. Seconds."""

    device: str
    started: float
    ended: float
    cause: Cause

    @property
    def seconds(self) -> float:
        """How long it is."""
        return self.ended - self.started


def idle_gaps(spans: Sequence[Span], devices: Iterable[Device], window: Window) -> list[Gap]:
    """Return the gaps of the devices in a window, device by device, in order of time.

    Gaps and work tile the window on each device: nothing overlaps, nothing is missing.

    Args:
        spans: of all iterations that matter to the window: also what comes before and after it, and
            spans of devices that have no lane, such as reward servers.
        devices: those to look at.
        window: [started, ended) in the clock of the spans.

    Raises:
        KeyError: a span is of an unknown kind.
    """
    history = _History(spans)
    return [gap for device in devices for gap in _gaps_of(history, device.name, window)]


def clip(gaps: Iterable[Gap], windows: Mapping[int, Window]) -> dict[int, list[Gap]]:
    """Return the parts of gaps that lie in each of some windows.

    Args:
        gaps: in any order; each is looked at once, as there may be thousands of windows.
        windows: by iteration, in order of time; none overlaps another.
    """
    ordered = list(windows.items())
    ends = [window.ended for _, window in ordered]
    found: dict[int, list[Gap]] = {iteration: [] for iteration in windows}
    for gap in gaps:
        for place in range(bisect_right(ends, gap.started), len(ordered)):
            iteration, window = ordered[place]
            if window.started >= gap.ended:
                break
            started, ended = max(gap.started, window.started), min(gap.ended, window.ended)
            found[iteration].append(Gap(gap.device, started, ended, gap.cause))
    return found


def idle_stretches(work: Sequence[Span], window: Window) -> Iterator[tuple[Window, Span | None]]:
    """Yield the stretches of a window without work, each with the task that ends it.

    Args:
        work: of one device, by start; spans may overlap.
        window: where to look.
    """
    done = window.started
    for span in work:
        if span.started > done and done < window.ended:
            yield Window(done, min(span.started, window.ended)), span
        done = max(done, span.ended)
    if done < window.ended:
        yield Window(done, window.ended), None


def _gaps_of(history: "_History", device: str, window: Window) -> Iterator[Gap]:
    for stretch, task in idle_stretches(history.work.get(device, []), window):
        idle = _Idle(device, task, history.ready(task))
        started, cause = stretch.started, history.cause(idle, stretch.started)
        for moment in history.changes(idle, stretch):
            now = history.cause(idle, moment)
            if now != cause:
                yield Gap(device, started, moment, cause)
                started, cause = moment, now
        yield Gap(device, started, stretch.ended, cause)


@dataclass(frozen=True, slots=True)
class _Idle:
    """A device without work, and what it does next."""

    device: str
    task: Span | None
    ready: float  # when that task had its inputs

    @property
    def generated_before(self) -> float:
        """Iterations below this one are generated before its next task."""
        if self.task is None:
            return float("inf")
        return self.task.iteration + (self.task.kind == "score")


class _History:
    """What the rules ask about the spans."""

    def __init__(self, spans: Sequence[Span]) -> None:
        # What takes no time on a virtual clock is an event to others, and nothing to its device.
        spans = sorted(spans, key=lambda span: span.started)
        lasting = [span for span in spans if span.ended > span.started]
        self._readiness = Readiness(spans)
        self._times, self._running = _phases(lasting)
        self._generation = _extents(span for span in spans if span.kind in GENERATING)
        self._training = _extents(span for span in spans if span.kind == "train")
        self.work = _by_device(span for span in lasting if span.kind not in READYING)
        switches = _by_device(span for span in spans if span.kind == "switch")
        pushes = _by_device(span for span in spans if span.kind == "push")
        steps = [span.started for span in spans if span.kind == "step"]
        self._switching = {name: _union(own) for name, own in switches.items()}
        self._loading = {name: _union(own) for name, own in pushes.items()}
        self._outdated = {name: _since_step(own, steps) for name, own in pushes.items()}

    def ready(self, task: Span | None) -> float:
        """Return when a task had its inputs; never, if there is none."""
        return float("inf") if task is None else self._readiness.ready(task)

    def changes(self, idle: _Idle, stretch: Window) -> list[float]:
        """Return the moments in an idle stretch at which the cause may change."""
        first, last = (bisect_left(self._times, t) for t in (stretch.started, stretch.ended))
        moments = {idle.ready, *self._times[first:last]}
        for unions in (self._loading, self._switching, self._outdated):
            if idle.device in unions:
                moments.update(unions[idle.device].edges(stretch))
        for extents in (self._generation, self._training):
            if idle.task is not None and (window := extents.get(idle.task.iteration)):
                moments |= {window.started, window.ended}
        return sorted(moment for moment in moments if stretch.started < moment < stretch.ended)

    def cause(self, idle: _Idle, moment: float) -> Cause:
        """Return why a device is idle; the rules are those of the table above."""
        if moment in self._switching.get(idle.device, NEVER):
            return "switch"
        if moment in self._loading.get(idle.device, NEVER):
            return "push"
        if idle.ready <= moment:
            return "orchestration"
        if moment in self._outdated.get(idle.device, NEVER):
            return "push"
        running = self._running[bisect_right(self._times, moment)]
        if not running:
            return "orchestration"
        if idle.task is not None and idle.task.kind in TRAINING:
            cause = self._without_pairs(idle.task.iteration, moment, running)
            if cause is not None:
                return cause
        return _waits_for(idle.generated_before, running)

    def _without_pairs(self, iteration: int, moment: float, running: _Running) -> Cause | None:
        """Return why a device that trains next has no pairs."""
        if any(stage == "train" and other < iteration for stage, other in running):
            return "tail"
        generation, training = self._generation.get(iteration), self._training.get(iteration)
        if generation is not None and moment in generation:
            return "fill" if training is None or moment < training.started else "starvation"
        return "reward" if ("score", iteration) in running else None


def _waits_for(generated_before: float, running: _Running) -> Cause:
    """Return what a device waits for whose next task is neither ready nor short of pairs."""
    stages = {stage for stage, _ in running}
    if "train" in stages or any(s == "generate" and k < generated_before for s, k in running):
        return "tail"
    causes: dict[str, Cause] = {"score": "reward", "version": "push", "switch": "switch"}
    return next((cause for stage, cause in causes.items() if stage in stages), "fill")


def _phases(spans: Iterable[Span]) -> tuple[list[float], list[_Running]]:
    """Return the times at which what runs changes, and what runs before, between and after them."""
    changes: dict[float, Counter[tuple[str, int]]] = {}
    for span in spans:
        stage = (SPAN_KINDS[span.kind].stage, span.iteration)
        for moment, change in ((span.started, 1), (span.ended, -1)):
            changes.setdefault(moment, Counter())[stage] += change
    times: list[float] = []
    running: list[_Running] = [frozenset()]
    count: Counter[tuple[str, int]] = Counter()
    for moment, change_of in sorted(changes.items()):
        count.update(change_of)
        now = frozenset(stage for stage, number in count.items() if number)
        if now != running[-1]:
            times.append(moment)
            running.append(now)
    return times, running


def _since_step(pushes: Iterable[Span], steps: Sequence[float]) -> Union:
    """Return when a device lacked a version that was being made or on its way.

    Args:
        pushes: to the device.
        steps: when the optimizer steps started, in order.
    """
    windows = []
    for push in pushes:
        made = bisect_right(steps, push.started)
        windows.append(Window(steps[made - 1] if made else push.started, push.ended))
    return Union(windows)


def _extents(spans: Iterable[Span]) -> dict[int, Window]:
    parts: dict[int, list[Span]] = {}
    for span in spans:
        parts.setdefault(span.iteration, []).append(span)
    return {iteration: extent(own) for iteration, own in parts.items()}


def _by_device(spans: Iterable[Span]) -> dict[str, list[Span]]:
    found: dict[str, list[Span]] = {}
    for span in spans:
        found.setdefault(span.device, []).append(span)
    return found


def _union(spans: Iterable[Span]) -> Union:
    return Union(Window(span.started, span.ended) for span in spans)
