"""Words and numbers of a run: shared by MLflow, Prefect's pages and the terminal."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from time import monotonic
from typing import Final

import numpy as np

from digen_core.config.run import RunConfig
from digen_core.inputs.text import number_of
from digen_core.maths.statistics import (
    NOISE_IN_SHORT,
    WITHIN_NOISE,
    Change,
    Share,
    error_of,
    unpaired_change,
    with_error,
)
from digen_core.records import EvaluationReport, IterationRecord

HEADLINES: Final = {
    "reward/mean": ("reward", ".3f"),
    "reward/std": ("std within groups", ".3f"),
    "groups/zero_variance": ("groups without signal", ".0f"),
    "train/kl": ("KL to the base model", ".3g"),
    "train/approx_kl": ("KL to sampling policy", ".3g"),
    "train/clip_fraction": ("clipped", ".1%"),
    "train/grad_norm": ("gradient norm", ".3g"),
    "train/gradient_cosine": ("cosine to exact gradient", ".4f"),
    "throughput/samples_per_second": ("images/s", ".1f"),
    "throughput/mfu": ("share of the peak", ".1%"),
    "cost/per_sample": ("cost of an image", ".3g"),
    "cost/total": ("spent", ".6g"),
    "time/iteration_seconds": ("seconds", ".1f"),
}
"""What is worth a line: metric name -> (label, format)."""

NO_MEANS: Final = "no reward judges samples each for itself"
"""What an evaluation shows where all rewards compare the samples of a group."""

RECENT: Final = 5
"""Iterations that the time left is estimated from."""

LAST_EVALUATIONS: Final = 4
"""That are shown beside the first one: long runs make hundreds, with the scores of all samples."""


@dataclass
class Progress:
    """How far a run is, as an observer of its events knows it."""

    config: RunConfig
    trains: bool = True  # else it is an evaluation of its own, which has no iterations
    phase: str = "starting"
    num_steps: int = 0  # of the phase that are done
    steps: int = 0  # of the phase; 0: it has none that are counted
    phase_began: float = field(default_factory=monotonic)
    version: int = 0
    num_finished: int = 0
    first: dict[str, float] = field(default_factory=dict)  # metrics of the first iteration
    last: dict[str, float] = field(default_factory=dict)  # and of the last; nothing before it
    #: Of what is worth a line, the value in each iteration that has it.
    values: dict[str, dict[int, float]] = field(default_factory=dict)
    seconds: list[float] = field(default_factory=list)  # of each iteration
    idle: dict[str, dict[str, float]] = field(default_factory=dict)  # of the last iteration
    #: By tag, in order: the first, and the last ones.
    evaluations: dict[str, EvaluationReport] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    started: float = field(default_factory=monotonic)

    def begin(self, phase: str) -> None:
        """Note what begins."""
        self.phase, self.phase_began = phase, monotonic()
        self.num_steps = self.steps = 0

    @property
    def phase_seconds(self) -> float:
        """Time since the phase began."""
        return monotonic() - self.phase_began

    def stand_at(self, num_iterations: int) -> None:
        """Note that a run goes on after so many iterations; what came later it does again."""
        self.num_finished = num_iterations
        self._forget_from(num_iterations)
        for tag in list(self.evaluations):
            number = re.fullmatch(r"iteration-(\d+)", tag)
            if number and int(number[1]) > num_iterations:
                del self.evaluations[tag]

    def add_iteration(self, record: IterationRecord) -> None:
        """Note a finished iteration. Its samples are not kept, of its metrics what is shown."""
        self._forget_from(record.iteration)  # it may be done again
        self.version = record.version
        self.num_finished = record.iteration + 1
        for name in headlines(record.metrics):
            self.values.setdefault(name, {})[record.iteration] = record.metrics[name]
        self.first, self.last = self.first or record.metrics, record.metrics
        self.seconds.append(record.seconds)
        self.idle = record.idle

    def _forget_from(self, iteration: int) -> None:
        for of_name in self.values.values():
            while next(reversed(of_name), -1) >= iteration:
                of_name.popitem()

    def add_evaluation(self, tag: str, report: EvaluationReport) -> None:
        """Note an evaluation; of many the first and the last ones are kept."""
        self.evaluations.pop(tag, None)  # that of a version before, as a run had ended with it
        self.evaluations[tag] = report
        for old in list(self.evaluations)[1:-LAST_EVALUATIONS]:
            del self.evaluations[old]

    def trend(self, name: str) -> list[float]:
        """Return the values of a metric in the iterations that have it, in order."""
        return list(self.values.get(name, {}).values())

    @property
    def fraction(self) -> float:
        """Share of the iterations that is finished."""
        return min(1.0, self.num_finished / self.config.num_iterations)

    @property
    def elapsed_seconds(self) -> float:
        """Time since the first event."""
        return monotonic() - self.started

    @property
    def seconds_left(self) -> float | None:
        """Time until the last iteration is over; None before the first one is.

        It is judged by the median of the last few: one in which the run was paused is as long as
        that took.
        """
        if not self.seconds:
            return None
        recent = self.seconds[-RECENT:]
        missing = max(0, self.config.num_iterations - self.num_finished)
        left = missing * median(recent)
        if self.config.max_minutes is not None:
            left = min(left, max(0.0, 60 * self.config.max_minutes - self.elapsed_seconds))
        if self.config.max_cost is not None and self.last.get("cost/iteration"):
            money = self.config.max_cost - self.last["cost/total"]
            iterations = money / self.last["cost/iteration"]
            left = min(left, max(0.0, iterations * self.seconds[-1]))
        return left


def headlines(metrics: Mapping[str, float]) -> list[str]:
    """Return the names worth a line, in order: the reward, its components, then the others."""
    components = sorted(name for name in metrics if is_component(name))
    others = [name for name in HEADLINES if name in metrics]
    first = [name for name in others if name == "reward/mean"]
    return first + components + [name for name in others if name not in first]


def is_component(name: str) -> bool:
    """Return whether a metric is the mean of a reward component: ``reward/<name>/<component>``."""
    return name.startswith("reward/") and name.count("/") >= 2


def label_of(name: str) -> str:
    """Return what a metric is called on screen."""
    return name.removeprefix("reward/") if is_component(name) else HEADLINES[name][0]


def text_of(name: str, value: float) -> str:
    """Return a metric's value as it is shown."""
    return format(value, ".3f" if is_component(name) else HEADLINES[name][1])


def value_text(name: str, metrics: Mapping[str, float]) -> str:
    """Return a metric's value, and its standard error if the metrics have one."""
    style = ".3f" if is_component(name) else HEADLINES[name][1]
    return with_error(text_of(name, metrics[name]), metrics.get(error_of(name)), style)


def change_between(
    name: str, first: Mapping[str, float], last: Mapping[str, float]
) -> Change | None:
    """Return how a metric with a standard error changed between iterations; None if it has none."""
    errors = first.get(error_of(name)), last.get(error_of(name))
    if name not in first or name not in last or None in errors:
        return None
    return unpaired_change(last[name] - first[name], *errors)


def samples_text(report: EvaluationReport) -> str:
    """Return of how much an evaluation is."""
    samples = number_of(report.num_samples, "sample")
    return f"{samples} of {number_of(report.num_prompts, 'prompt')}"


def mean_text(report: EvaluationReport, name: str) -> str:
    """Return a component of an evaluation with its standard error: "0.573 ± 0.021"."""
    return with_error(f"{report.rewards[name]:.3f}", report.standard_error(name))


def change_text(change: Change | None) -> str:
    """Return a change with its standard error: "+0.177 ± 0.024"; nothing of None."""
    if change is None:
        return ""
    value = round(change.value, 3) + 0.0  # never -0.000
    return with_error(f"{value:+.3f}", change.error)


def wins_text(share: Share | None) -> str:
    """Return a share of wins with its standard error: "61% ± 4%"; nothing of None."""
    return "" if share is None else with_error(f"{share.value:.0%}", share.error, ".0%")


def wins_cells(report: EvaluationReport, name: str) -> list[str]:
    """Return the cell of a component in a column of wins over the base model.

    None in a report without wins, which has no such column.
    """
    own = report.wins.get(name)
    return [wins_text(own.pairs if own else None)] if report.wins else []


def verdict(change: Change | None) -> str:
    """Return what to say of a change that chance may have made; else nothing."""
    return WITHIN_NOISE if change is not None and change.is_noise else ""


def verdict_in_short(change: Change | None) -> str:
    """Return the same where a table has little room."""
    return NOISE_IN_SHORT if verdict(change) else ""


def busy_fractions(metrics: Mapping[str, float]) -> dict[str, float]:
    """Return the busy share of each device, from ``device/<name>/busy_fraction``."""
    prefix, suffix = "device/", "/busy_fraction"
    return {
        name.removeprefix(prefix).removesuffix(suffix): value
        for name, value in sorted(metrics.items())
        if name.startswith(prefix) and name.endswith(suffix)
    }


def idle_causes(metrics: Mapping[str, float]) -> dict[str, float]:
    """Return the causes of all devices' idle time and their shares, from ``idle/<cause>``."""
    return {n.removeprefix("idle/"): v for n, v in metrics.items() if n.startswith("idle/")}


def causes_text(shares: Mapping[str, float]) -> str:
    """Return causes of idle time, the largest first: "tail 20%, push 3%"."""
    ordered = sorted(shares.items(), key=lambda item: -item[1])
    return ", ".join(f"{cause} {share:.0%}" for cause, share in ordered if share >= 0.005)


def duration(seconds: float) -> str:
    """Return a time as "1:23" or "1:02:03"."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def thin(values: Sequence[float], count: int) -> list[float]:
    """Return at most ``count`` values: means of neighbours where there are more."""
    if len(values) <= count:
        return list(values)
    return [float(np.mean(part)) for part in np.array_split(np.asarray(values), count)]


def sparkline(values: Sequence[float], width: int) -> str:
    """Return values as bars between their own minimum and maximum; NaN and Inf are blanks."""
    bars = "▁▂▃▄▅▆▇█"
    shown = thin(values, width)
    finite = [value for value in shown if math.isfinite(value)]
    if not finite:
        return " " * len(shown)
    low, extent = min(finite), max(finite) - min(finite)
    scale = (len(bars) - 1) / extent if extent > 0 else 0.0
    return "".join(
        bars[round((value - low) * scale)] if math.isfinite(value) else " " for value in shown
    )


def line_chart(title: str, values: Sequence[float], first: int, last: int) -> str:
    """Return an SVG picture of finite values over their positions, with both ends labelled.

    Args:
        title: above it.
        values: of iterations, in order.
        first: number of the iteration that the first value is of.
        last: number of the one that the last is of.
    """
    width, height, left, top, bottom = 640, 200, 56, 28, 172
    shown = thin(values, 200)
    low, high = min(shown), max(shown)
    heights = [(value - low) / (high - low) if high > low else 0.5 for value in shown]
    step = (width - left - 16) / max(1, len(shown) - 1)
    points = [(left + i * step, bottom - h * (bottom - top)) for i, h in enumerate(heights)]
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    x, y = points[-1]
    text = '<text font-family="sans-serif" font-size="12" fill="#444"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}">'
        f'<rect width="100%" height="100%" fill="#fff"/>'
        f'<path d="M{left} {top}V{bottom}H{width - 16}" fill="none" stroke="#bbb"/>'
        f'<polyline points="{line}" fill="none" stroke="#2563eb" stroke-width="2"/>'
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="#2563eb"/>'
        f'{text} x="{left}" y="16">{title}</text>'
        f'{text} x="{left - 6}" y="{top + 4}" text-anchor="end">{high:.3f}</text>'
        f'{text} x="{left - 6}" y="{bottom + 4}" text-anchor="end">{low:.3f}</text>'
        f'{text} x="{left}" y="{bottom + 18}">{first}</text>'
        f'{text} x="{width - 16}" y="{bottom + 18}" text-anchor="end">{last}</text></svg>'
    )
