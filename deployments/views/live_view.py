"""The terminal's view of a run: a live page, or one plain line per event where there is none."""

import io
import logging
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from math import inf
from pathlib import Path
from shlex import quote
from time import monotonic
from types import TracebackType
from typing import IO, TYPE_CHECKING, Self, cast

from rich.console import Console, RenderableType
from rich.live import Live

from deployments.errors import RunStoppedError
from deployments.stopping import stopping
from deployments.views.panel import draw_page
from deployments.views.terminal import Output
from digen_core.config.run import RunConfig
from digen_core.inputs.addresses import redacted
from digen_core.inputs.text import number_of, printable
from digen_core.records import EvaluationReport, IterationRecord
from tasks.views.display import (
    NO_MEANS,
    Progress,
    causes_text,
    duration,
    headlines,
    idle_causes,
    label_of,
    mean_text,
    samples_text,
    value_text,
)

if TYPE_CHECKING:
    from deployments.operation.prefect_server import PrefectApi

REFRESHES_PER_SECOND = 2
LINK_SECONDS = 60.0
"""How long a link that signs in to Prefect is shown, before a new one is."""
STEP_SECONDS = 30.0
"""How often a line reports how far something is that is not over, where there is no page."""


class LiveView:
    """An observer of a run that shows it in the terminal. Use it by ``with``.

    Where the console is not a terminal (a pipe, CI), each event is one line of plain ASCII.
    """

    def __init__(
        self,
        config: RunConfig,
        run_id: str,
        console: Console | None = None,
        *,
        trains: bool = True,
    ) -> None:
        """Prepare the view.

        Args:
            config: of the run.
            run_id: shown as its name.
            console: that is written to, if not stdout.
            trains: or the run is only evaluated.
        """
        self._progress = Progress(config, trains=trains)
        self._run_id = run_id
        self._console = console or Output()
        self._is_live = self._console.is_interactive
        self._prefect: PrefectApi | None = None
        self._link, self._link_made = "", -inf
        self._cleanup = ExitStack()
        self._reported = monotonic()

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
        elif self._progress.trains:
            total = self._progress.config.num_iterations
            self._say(f"run {self._run_id}, {number_of(total, 'iteration')}")
        else:
            self._say(f"evaluation of run {self._run_id}")
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Leave the last page on the screen."""
        self.on_phase(_how_it_ended(error_type))
        with suppress(OSError):
            self._cleanup.close()

    def on_phase(self, text: str) -> None:
        """Show what begins, such as "starting workers"."""
        self._progress.begin(printable(redacted(text)))
        self._reported = monotonic()
        if not self._is_live:
            self._say(text)

    def on_step(self, done: int, total: int) -> None:
        """Show how far the phase is."""
        self._progress.num_steps, self._progress.steps = done, total
        if not self._is_live and monotonic() - self._reported >= STEP_SECONDS:
            self._reported = monotonic()
            self._say(f"{self._progress.phase}: {done} of {total}")

    def on_prefect(self, api: "PrefectApi") -> None:
        """Show where Prefect's pages are; only a terminal is told how to sign in to them."""
        self._prefect = api
        if not self._is_live:
            self._say(f"Prefect: {api.url.removesuffix('/api')}")

    def on_open(self, run_dir: Path) -> None:
        """Remember how the run can be resumed, should it have to be killed."""
        stopping.text = f"stopped; resume it with: digen train --resume {quote(str(run_dir))}"

    def on_resume(self, num_iterations: int) -> None:
        """Show from where the run goes on."""
        self._progress.stand_at(num_iterations)

    def on_stop(self, why: str) -> None:
        """End this command in seconds."""
        self.on_phase(f"stopping: {why}")
        if stopping.is_installed:
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
        self._progress.add_evaluation(tag, report)
        if not self._is_live:
            means = (f"{name} {in_ascii(mean_text(report, name))}" for name in report.rewards)
            rewards = ", ".join(means) or NO_MEANS
            self._say(
                f"evaluation {tag}: version {report.version}, {samples_text(report)}: {rewards}"
            )

    def render(self) -> RenderableType:
        """Return the page as it is now."""
        width, height = self._console.size
        link = f"Prefect  {self._current_link(self._prefect)}" if self._prefect else ""
        return draw_page(self._run_id, self._progress, width, height - 1, link)  # the cursor's line

    def _current_link(self, api: "PrefectApi") -> str:
        """Return the address of Prefect's pages; links that sign in are good once, for a while."""
        if monotonic() - self._link_made > LINK_SECONDS:
            self._link, self._link_made = redacted(api.page()), monotonic()
        return self._link

    def _say(self, line: str) -> None:
        time, line = duration(self._progress.elapsed_seconds), printable(redacted(line))
        text = f"{time:>7}  {line}"
        with suppress(OSError):  # the terminal is gone, or the log's disk full; the run goes on
            self._console.print(text, soft_wrap=True, markup=False, highlight=False)

    def _iteration_line(self, record: IterationRecord) -> str:
        total, left = self._progress.config.num_iterations, self._progress.seconds_left
        values = [
            f"{label_of(name)} {in_ascii(value_text(name, record.metrics))}"
            for name in headlines(record.metrics)
        ]
        if idle := idle_causes(record.metrics):
            waited = causes_text(idle)
            values.append(f"devices busy {1 - sum(idle.values()):.0%} (idle: {waited})")
        values.append(f"{duration(left or 0)} left")
        return f"iteration {record.iteration + 1} of {total}: {', '.join(values)}"


def in_ascii(text: str) -> str:
    """Return text in ASCII."""
    return text.replace("±", "+-")


def _how_it_ended(error_type: type[BaseException] | None) -> str:
    if error_type is None:
        return "finished"
    if issubclass(error_type, RunStoppedError | KeyboardInterrupt):
        return "stopped"
    return "terminated" if issubclass(error_type, SystemExit) else "failed"


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
                    console.file = cast(IO[str], _SharedStderr())
        yield
