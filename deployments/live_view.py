"""The terminal's view of a run: a live page, or one plain line per event where there is none."""

import io
import logging
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from deployments.errors import RunStoppedError
from deployments.stopping import stopping
from digen_core.config import RunConfig
from digen_core.records import EvaluationReport, IterationRecord
from tasks.display import (
    Progress,
    busy_fractions,
    causes_text,
    duration,
    headlines,
    idle_causes,
    label_of,
    sparkline,
    text_of,
)

REFRESHES_PER_SECOND = 2
TREND_WIDTH = 24
BAR_WIDTH = 20
DEVICE_BAR_WIDTH = 10
CAUSES_WIDTH = 36


class LiveView:
    """An observer of a run that shows it in the terminal. Use it by ``with``.

    Where the console is not a terminal (a pipe, CI), each event is one line of plain ASCII.
    """

    def __init__(self, config: RunConfig, run_id: str, console: Console | None = None) -> None:
        self._progress = Progress(config)
        self._run_id = run_id
        self._console = console or Console()
        self._is_live = self._console.is_interactive
        self._cleanup = ExitStack()

    def __enter__(self) -> Self:
        """Show the page, or print the first line."""
        if self._is_live:
            live = Live(
                get_renderable=self.render,
                console=self._console,
                refresh_per_second=REFRESHES_PER_SECOND,
            )
            self._cleanup.enter_context(_logs_above_the_page())
            self._cleanup.enter_context(live)
        else:
            self._say(f"run {self._run_id}, {self._progress.config.num_iterations} iterations")
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Leave the last page on the screen."""
        self.on_phase(_how_it_ended(error_type))
        self._cleanup.close()

    def on_phase(self, text: str) -> None:
        """Show what begins, such as "starting workers"."""
        self._progress.phase = text
        if not self._is_live:
            self._say(text)

    def on_open(self, run_dir: Path) -> None:
        """Remember how the run can be resumed, should it have to be killed."""
        stopping.text = f"stopped; resume it with: digen train --resume {run_dir}"

    def on_stop(self, why: str) -> None:
        """End this command in seconds."""
        self.on_phase(f"stopping: {why}")
        stopping.begin()

    def on_warning(self, text: str) -> None:
        """Print a line that stays, above the page if there is one."""
        self._say(f"warning: {text}")

    def on_iteration(self, record: IterationRecord) -> None:
        """Show a finished iteration."""
        self._progress.add_iteration(record)
        if not self._is_live:
            self._say(self._iteration_line(record))

    def on_evaluation(self, tag: str, report: EvaluationReport) -> None:
        """Show an evaluation."""
        self._progress.evaluations[tag] = report
        if not self._is_live:
            rewards = ", ".join(f"{name} {value:.3f}" for name, value in report.rewards.items())
            self._say(
                f"evaluation {tag}: version {report.version}, {report.num_samples} samples of "
                f"{report.num_prompts} prompts: {rewards}"
            )

    def render(self) -> RenderableType:
        """Return the page as it is now."""
        parts: list[RenderableType] = [self._bar()]
        metrics = self._progress.history[-1] if self._progress.history else {}
        if metrics:
            parts += ["", self._metrics_table(metrics)]
        if self._progress.evaluations:
            parts += ["", _evaluation_table(self._progress.evaluations)]
        if busy := busy_fractions(metrics):
            parts += ["", _devices_table(busy, self._progress.idle)]
        return Panel(Group(*parts), title=f"digen  {self._run_id}", title_align="left", width=88)

    def _say(self, line: str) -> None:
        time = duration(self._progress.elapsed_seconds)
        self._console.print(f"{time:>7}  {line}", soft_wrap=True, markup=False, highlight=False)

    def _iteration_line(self, record: IterationRecord) -> str:
        total, left = self._progress.config.num_iterations, self._progress.seconds_left
        values = [
            f"{label_of(name)} {text_of(name, record.metrics[name])}"
            for name in headlines(record.metrics)
        ]
        if idle := idle_causes(record.metrics):
            waited = causes_text(idle)
            values.append(f"devices busy {1 - sum(idle.values()):.0%} (idle: {waited})")
        values.append(f"{duration(left or 0)} left")
        return f"iteration {record.iteration + 1}/{total}: {', '.join(values)}"

    def _bar(self) -> RenderableType:
        progress = self._progress
        total, left = progress.config.num_iterations, progress.seconds_left
        grid = Table.grid(padding=(0, 2))
        grid.add_row(
            Text(f"{progress.num_finished}/{total} iterations", style="bold"),
            ProgressBar(total=total, completed=progress.num_finished, width=BAR_WIDTH),
            f"{duration(progress.elapsed_seconds)} elapsed",
            "" if left is None else f"{duration(left)} left",
        )
        return Group(grid, Text(progress.phase, style="dim"))

    def _metrics_table(self, metrics: dict[str, float]) -> Table:
        table = _table("metric", "first", "now")
        table.add_column("trend")
        first = self._progress.history[0]
        for name in headlines(metrics):
            table.add_row(
                label_of(name),
                text_of(name, first[name]) if name in first else "",
                text_of(name, metrics[name]),
                Text(sparkline(self._progress.trend(name), TREND_WIDTH), style="cyan"),
                style="bold" if name == "reward/mean" else None,
            )
        return table


def _how_it_ended(error_type: type[BaseException] | None) -> str:
    if error_type is None:
        return "finished"
    if issubclass(error_type, RunStoppedError | KeyboardInterrupt):
        return "stopped"
    return "terminated" if issubclass(error_type, SystemExit) else "failed"


def _table(label: str, *columns: str) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column(label, width=24, no_wrap=True)
    for column in columns:
        table.add_column(column, justify="right", min_width=8)
    return table


def _devices_table(busy: dict[str, float], idle: dict[str, dict[str, float]]) -> Table:
    """Show what each device did in the last iteration, and what it waited for."""
    table = _table("device", "busy")
    table.add_column("", min_width=DEVICE_BAR_WIDTH)
    table.add_column("idle by cause", width=CAUSES_WIDTH)
    for device, share in busy.items():
        bar = ProgressBar(total=1.0, completed=share, width=DEVICE_BAR_WIDTH)
        table.add_row(device, f"{share:.0%}", bar, causes_text(idle.get(device, {})))
    return table


def _evaluation_table(evaluations: dict[str, EvaluationReport]) -> Table:
    """Show the latest evaluation, beside the first one if there are several."""
    tags = list(dict.fromkeys([next(iter(evaluations)), next(reversed(evaluations))]))
    heads = [f"{tag} (v{evaluations[tag].version})" for tag in tags]
    table = _table("evaluation", *heads, *(["change"] if len(tags) == 2 else []))
    first, last = evaluations[tags[0]].rewards, evaluations[tags[-1]].rewards
    for name, value in last.items():
        texts = [f"{value:.3f}"]
        if len(tags) == 2 and name in first:
            texts = [f"{first[name]:.3f}", *texts, f"{value - first[name]:+.3f}"]
        table.add_row(name, *texts, style="bold" if name == "reward" else None)
    return table


class _SharedStderr(io.TextIOBase):
    """Writes to what ``sys.stderr`` is at that time: the page's stand-in while there is a page."""

    def write(self, text: str) -> int:
        return sys.stderr.write(text)

    def flush(self) -> None:
        sys.stderr.flush()


@contextmanager
def _logs_above_the_page() -> Iterator[None]:
    """Lead log handlers that hold the real stderr to the page's stand-in while the body runs.

    Prefect's handler and Dask's were made on import; their lines would tear the page. Prefect's
    writes through a rich console of its own, which has to be led there itself.
    """
    loggers = [logging.getLogger(), *map(logging.getLogger, logging.root.manager.loggerDict)]
    handlers = {handler for logger in loggers for handler in logger.handlers}
    with ExitStack() as undo:
        for handler in handlers:
            if isinstance(handler, logging.StreamHandler) and handler.stream is sys.stderr:
                undo.callback(handler.setStream, handler.stream)
                handler.setStream(_SharedStderr())
                console = getattr(handler, "console", None)
                if isinstance(console, Console):
                    undo.callback(setattr, console, "file", console.file)
                    console.file = _SharedStderr()
        yield
