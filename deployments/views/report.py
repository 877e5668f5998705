"""The report of a run: timelines, idle time by cause, predictions, rewards, and a trace to open."""

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median, median_low

from matplotlib.figure import Figure
from rich.console import Console

from deployments.views.report_rewards import evaluation_table, reward_curves
from deployments.views.summary import LEGEND
from deployments.views.terminal import borderless, plain, terminal
from digen_core.checkpoints.retention import evaluations_of
from digen_core.config.load import require_run
from digen_core.control.protocol import Device
from digen_core.errors import UserError
from digen_core.inputs.text import number_of, short
from digen_core.records import Span
from digen_core.trace.charts import draw_curves, draw_idle
from digen_core.trace.gaps import CAUSES, Gap, clip, idle_gaps
from digen_core.trace.metrics import idle_seconds
from digen_core.trace.page import Part, Table, page, png_of
from digen_core.trace.perfetto import chrome_trace
from digen_core.trace.prediction import SCHEDULE_OF_RUN, Prediction, read_prediction
from digen_core.trace.spans import DEVICES_OF_RUN, SPANS_OF_RUN, read_devices, read_spans
from digen_core.trace.style import IDLE_STYLES
from digen_core.trace.timeline import draw_timeline
from digen_core.trace.windows import Window, iteration_windows
from digen_core.transport.files import replace_bytes, replace_text

MAX_TIMELINES = 20
"""Of a run with more iterations only some are drawn."""
NO_PREDICTION = f"The run keeps no prediction (no {SCHEDULE_OF_RUN} in its folder)."


@dataclass(frozen=True, slots=True)
class RunTrace:
    """What a run's devices did, and when each of its iterations was."""

    name: str
    spans: list[Span]
    devices: list[Device]
    windows: dict[int, Window]
    present: dict[int, list[Device]]  # by iteration
    gaps: dict[int, list[Gap]]  # by iteration, of the devices that were there
    prediction: Prediction | None

    @property
    def all_gaps(self) -> list[Gap]:
        """Gaps of all iterations."""
        return [gap for gaps in self.gaps.values() for gap in gaps]

    @property
    def seconds(self) -> float:
        """Seconds of all iterations."""
        return sum(window.seconds for window in self.windows.values())

    @property
    def predicted(self) -> dict[int, Window]:
        """Those that the prediction is of: with the devices that the last iteration has."""
        now = self.present[max(self.present)]
        return {k: window for k, window in self.windows.items() if self.present[k] == now}

    @property
    def device_seconds(self) -> dict[str, float]:
        """Seconds of the iterations in which each device was there, by its name."""
        found = dict.fromkeys((device.name for device in self.devices), 0.0)
        for number, present in self.present.items():
            for device in present:
                found[device.name] += self.windows[number].seconds
        return found


@dataclass(frozen=True, slots=True)
class Report:
    """A written report."""

    trace: RunTrace
    evaluations: Table | None
    out: Path


def write_report(run_dir: Path, out: Path, every: bool = False) -> Report:
    """Write the report of a run: pictures, a page that shows them, and a trace for Perfetto.

    Args:
        run_dir: folder of the run.
        out: folder to write to; made if it is missing, files of an earlier report are replaced.
        every: draw every iteration's timeline, however many there are.

    Raises:
        UserError: the folder is no run's, holds no spans, or ``out`` cannot be written.
    """
    trace, evaluations = read_trace(run_dir), evaluation_table(evaluations_of(run_dir))
    shown = shown_iterations(trace.windows, every)
    pictures = {name_of(index): timeline(trace, index) for index in shown}
    pictures["idle.png"] = draw_idle(trace.all_gaps, trace.device_seconds, trace.name)
    curves, errors = reward_curves(run_dir)
    if curves:
        pictures["rewards.png"] = draw_curves(curves, errors)
    images = {name: png_of(figure) for name, figure in pictures.items()}
    trace_text = json.dumps(chrome_trace(trace.spans, trace.devices, trace.all_gaps))
    try:
        out.mkdir(parents=True, exist_ok=True)
        for name, image in images.items():
            replace_bytes(out / name, image)
        replace_text(out / "trace.json", trace_text)
        replace_text(out / "report.html", _page(trace, shown, images, evaluations))
    except OSError as error:
        raise UserError(f"cannot write the report to {out}: {error.strerror}") from error
    return Report(trace, evaluations, out)


def read_trace(run_dir: Path) -> RunTrace:
    """Return what a run's folder holds about its devices.

    Raises:
        UserError: the folder is no run's, or its spans, devices or prediction cannot be read.
    """
    require_run(run_dir)
    try:
        spans = read_spans(run_dir / SPANS_OF_RUN)
        devices = read_devices(run_dir / DEVICES_OF_RUN)
    except FileNotFoundError as error:
        raise UserError(
            f"{run_dir} holds no spans to report on; runs keep them in {SPANS_OF_RUN}/ and "
            f"{DEVICES_OF_RUN} from their first iteration on"
        ) from error
    except (ValueError, OSError) as error:
        raise UserError(f"cannot read the spans of {run_dir}: {error}") from error
    present = _present(spans, devices)
    windows = {k: own for k, own in iteration_windows(spans).items() if own.seconds > 0}
    windows = {k: own for k, own in windows.items() if present[k]}
    if not windows:
        raise UserError(f"{run_dir} holds no spans to report on: no iteration is in them")
    whole = Window(min(w.started for w in windows.values()), max(w.ended for w in windows.values()))
    parts = clip(idle_gaps(spans, devices, whole), windows)
    there = {(k, device.name) for k in windows for device in present[k]}
    return RunTrace(
        name=run_dir.resolve().name,
        spans=spans,
        devices=[own for own in devices if own.name in {name for _, name in there}],
        windows=windows,
        present={k: present[k] for k in windows},
        gaps={k: [gap for gap in own if (k, gap.device) in there] for k, own in parts.items()},
        prediction=_prediction_of(run_dir),
    )


def _present(spans: Iterable[Span], devices: Iterable[Device]) -> dict[int, list[Device]]:
    """Return the devices that were there in each iteration: from their first span to their last.

    One that joined later, or was lost before, was not idle then.
    """
    worked: dict[str, set[int]] = {device.name: set() for device in devices}
    numbers = set[int]()
    for span in spans:
        numbers.add(span.iteration)
        worked.setdefault(span.device, set()).add(span.iteration)
    there = {name: range(min(own), max(own) + 1) for name, own in worked.items() if own}
    return {k: [own for own in devices if k in there.get(own.name, ())] for k in numbers}


def shown_iterations(windows: Mapping[int, Window], every: bool = False) -> list[int]:
    """Return the iterations whose timelines are drawn.

    All of a short run; else the first, one of median length, and the last.
    """
    if every or len(windows) <= MAX_TIMELINES:
        return sorted(windows)
    _, typical = median_low((window.seconds, number) for number, window in windows.items())
    return sorted({min(windows), typical, max(windows)})


def print_report(report: Report, console: Console | None = None) -> None:
    """Print where the device time went, how good the prediction was, and where the report is."""
    console = console or terminal()
    trace = report.trace
    _print(console, _idle_table(trace), _summary(trace), (1, 2))
    console.print(_verdict(trace), markup=False)
    if report.evaluations is not None:
        title = "held-out prompts, mean ± standard error over the prompts"
        _print(console, report.evaluations, title, (1, 2, 3))
    console.print(f"page      {report.out / 'report.html'}", markup=False)
    console.print(
        f"Perfetto  {report.out / 'trace.json'}, to open at ui.perfetto.dev", markup=False
    )


def _print(console: Console, table: Table, title: str, numbers: Collection[int]) -> None:
    """Print a table, the columns of numbers to the right."""
    grid = borderless(plain(title), gap=1)  # 80 columns
    for place, column in enumerate(table.columns):
        if place in numbers:
            grid.add_column(plain(column), justify="right", no_wrap=True)
        else:
            grid.add_column(plain(column), overflow="ellipsis" if place else "fold")
    for row in table.rows:
        grid.add_row(*map(plain, row))
    console.print(grid)


def name_of(index: int) -> str:
    """Return the file of an iteration's timeline; its number counts from 1."""
    return f"timeline-{index + 1:06d}.png"


def timeline(trace: RunTrace, index: int) -> Figure:
    """Return the timeline of an iteration."""
    window, gaps, devices = trace.windows[index], trace.gaps[index], trace.present[index]
    return draw_timeline(trace.spans, gaps, devices, window, f"iteration {index + 1}")


def _page(
    trace: RunTrace,
    shown: Collection[int],
    images: Mapping[str, bytes],
    evaluations: Table | None,
) -> str:
    predictions: list[Part] = [_verdict(trace)]
    if trace.prediction:
        predictions.append(_prediction_table(trace, trace.prediction, shown))
    timelines: list[Part] = [images[name_of(index)] for index in shown]
    rewards: list[Part] = [
        images.get(
            "rewards.png",
            "The run keeps no samples, or has no reward of which a mean tells anything.",
        )
    ]
    rewards += [evaluations, LEGEND] if evaluations is not None else []
    return page(
        f"Report of {trace.name}",
        [
            ("Where the device time went", [_summary(trace), _idle_table(trace)]),
            ("Idle time by device", [images["idle.png"]]),
            ("Predicted and measured", predictions),
            ("Timelines", timelines),
            ("Rewards", rewards),
            ("Trace", ["trace.json beside this page opens at https://ui.perfetto.dev."]),
        ],
    )


def _summary(trace: RunTrace) -> str:
    return (
        f"{trace.name}: {number_of(len(trace.windows), 'iteration')}, {trace.seconds:.1f} s on "
        f"{number_of(len(trace.devices), 'device')}"
    )


def _idle_table(trace: RunTrace) -> Table:
    total = sum(trace.device_seconds.values())
    idle = idle_seconds(trace.all_gaps)
    times: dict[str, float] = {"busy": total - sum(idle.values())} | {c: idle[c] for c in idle}
    meanings: dict[str, str] = {cause: IDLE_STYLES[cause].meaning for cause in CAUSES}
    rows = [[k, f"{t:.1f}", f"{t / total:.1%}", meanings.get(k, "work")] for k, t in times.items()]
    return Table(("time", "device seconds", "share", "the device"), rows)


def _verdict(trace: RunTrace) -> str:
    if trace.prediction is None:
        return NO_PREDICTION
    predicted = trace.prediction.predicted_seconds
    measured = median(window.seconds for window in trace.predicted.values())
    return (
        f"Layout {trace.prediction.layout}: {short(predicted)} s an iteration predicted, "
        f"{short(measured)} s measured (median), error {predicted / measured - 1:+.1%}"
    )


def _prediction_table(trace: RunTrace, prediction: Prediction, shown: Collection[int]) -> Table:
    predicted = prediction.predicted_seconds
    measured = [(k, window.seconds) for k, window in trace.predicted.items() if k in shown]
    rows = [
        [f"{k + 1}", short(predicted), short(t), f"{predicted / t - 1:+.1%}"] for k, t in measured
    ]
    return Table(("iteration", "predicted seconds", "measured seconds", "error"), rows)


def _prediction_of(run_dir: Path) -> Prediction | None:
    try:
        return read_prediction(run_dir)
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read {error}") from error
