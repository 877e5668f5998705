"""A run's page in Prefect: a progress bar and a report, kept up to date as artifacts of its flow.

Each iteration has a page of its own, as an artifact of its flow run: metrics, what the devices did
and waited for, and some samples with their rewards.

The report is Markdown: tables, and the reward curve as a picture inside the text. Prefect's pages
draw embedded pictures; where they are not drawn (``prefect artifact inspect``), a sparkline is.
"""

import base64
import logging
import math
import re
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextvars import copy_context
from functools import partial
from itertools import groupby
from pathlib import Path
from threading import Event, Lock
from time import monotonic
from types import TracebackType
from typing import Any, Final, NamedTuple, Self, cast
from uuid import UUID

from httpx import HTTPError, TransportError
from prefect.artifacts import create_markdown_artifact, create_progress_artifact
from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import ArtifactUpdate
from prefect.exceptions import PrefectException
from tenacity import (
    Retrying,
    retry_if_exception_type,
    sleep_using_event,
    stop_after_delay,
    stop_when_event_set,
    wait_fixed,
)

from digen_core.config.rewards import relative
from digen_core.config.run import RunConfig
from digen_core.inputs.addresses import redacted
from digen_core.records import EvaluationReport, IterationRecord, Picture
from tasks.views.display import (
    Progress,
    busy_fractions,
    change_between,
    change_text,
    duration,
    headlines,
    idle_causes,
    is_component,
    label_of,
    line_chart,
    mean_text,
    sparkline,
    value_text,
    verdict,
)
from tasks.views.markdown import cell, code, escaped, inline
from tasks.views.retention import drop_iterations

logger = logging.getLogger(__name__)

PROGRESS_KEY: Final = "digen-progress"
REPORT_KEY: Final = "digen-report"
ITERATION_KEY: Final = "digen-iteration"
LAST_WORD_SECONDS: Final = 60.0
"""How long the end of a run waits for Prefect's API."""
RETRY_SECONDS: Final = 2.0
SHOWN: Final = 5
"""Warnings on a run's page: the last ones."""
PAUSE_SECONDS: Final = 5.0
"""Between two states of a run's page: each takes Prefect's server two requests."""
OUTAGE_SECONDS: Final = 480.0
"""How long each call waits for a server that is away, as those of the run's flows do."""


class _State(NamedTuple):
    percent: float
    description: str
    report: str


class RunArtifacts:
    """An observer of a run that keeps its two artifacts. Make and enter it inside the run's flow.

    Calls return at once: a thread talks to the API, every few seconds, and newer states replace
    older ones meanwhile. One that stays down is warned about once.
    """

    def __init__(
        self, config: RunConfig, run_id: str, links: Mapping[str, str] | None = None
    ) -> None:
        """Prepare the artifacts.

        Args:
            config: of the run.
            run_id: shown as the title.
            links: label to address, or to a command to be typed.
        """
        self._run_id = run_id
        self._links = links or {}
        self._progress = Progress(config)
        self._ids: dict[str, UUID] = {}
        self._context = copy_context()  # names the flow run
        self._latest: deque[_State] = deque(maxlen=1)
        self._calls: deque[Future[None]] = deque()
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="artifacts")
        self._pages = ThreadPoolExecutor(1, thread_name_prefix="pages")  # waits for pictures
        self._warning = Lock()  # taken by the first one
        self._publishing = Lock()
        self._sent = -PAUSE_SECONDS
        self._ending = Event()
        self._ended = Event()

    def __enter__(self) -> Self:
        """Create both artifacts."""
        self._publish()
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Send the last state."""
        self._progress.phase = (
            "finished" if error_type is None else f"ended by {error_type.__name__}"
        )
        self._publish()
        self._ending.set()
        done, _ = wait(self._calls, timeout=LAST_WORD_SECONDS)
        self._ended.set()
        for executor in (self._executor, self._pages):
            executor.shutdown(wait=False, cancel_futures=True)
        for call in done:
            call.result()

    def on_phase(self, text: str) -> None:
        """Show what begins."""
        self._progress.begin(text)
        self._publish()

    def on_step(self, done: int, total: int) -> None:
        """Show how far the phase is."""
        self._progress.num_steps, self._progress.steps = done, total
        self._publish()

    def on_open(self, run_dir: Path) -> None:
        """Nothing: the page has the folder."""

    def on_stop(self, why: str) -> None:
        """Nothing: Prefect has its state."""

    def on_warning(self, text: str) -> None:
        """Show what is wrong."""
        self._progress.warnings.append(text)
        self._publish()

    def on_iteration(self, record: IterationRecord) -> None:
        """Show a finished iteration, and let an old one go; called inside its flow run."""
        self._progress.add_iteration(record)
        self._publish()
        todo: list[Callable[[], Any]] = [partial(_show_iteration, record)]
        keep = self._progress.config.tracking.keep_in_prefect
        if keep != "all":
            todo.append(partial(drop_iterations, self._run_id, keep))
        for call in todo:
            attempt = partial(self._attempt, call)
            self._calls.append(self._pages.submit(copy_context().run, attempt))

    def on_evaluation(self, tag: str, report: EvaluationReport) -> None:
        """Show an evaluation."""
        self._progress.evaluations[tag] = report
        self._publish()

    def _publish(self) -> None:
        with self._publishing:  # warnings come from several threads
            self._latest.append(self._state())
            while self._calls and self._calls[0].done():
                self._calls.popleft().result()  # raises what is not the API's fault
            self._calls.append(self._executor.submit(self._context.run, self._attempt, self._send))

    def _attempt(self, call: Callable[..., None], *arguments: object) -> None:
        try:
            # Prefect's own client repeats no call before its first success, and here each is new.
            for attempt in self._attempts():
                with attempt:
                    call(*arguments)
        except (HTTPError, PrefectException) as error:
            if self._warning.acquire(blocking=False):
                logger.warning(
                    "Prefect's API did not take the artifacts of %s; the run goes on and says "
                    "this once: %s",
                    self._run_id,
                    str(error) or type(error).__name__,
                )

    def _attempts(self) -> Retrying:
        """Return attempts until the server is back, or the run has ended."""
        return Retrying(
            retry=retry_if_exception_type(TransportError),
            wait=wait_fixed(RETRY_SECONDS),
            stop=stop_after_delay(OUTAGE_SECONDS) | stop_when_event_set(self._ended),
            sleep=sleep_using_event(self._ended),
            reraise=True,
        )

    def _send(self) -> None:
        if not self._latest:
            return  # an earlier call sent what was newer than itself
        self._ending.wait(self._sent + PAUSE_SECONDS - monotonic())
        state = self._latest.pop()
        try:
            self._send_state(state)
            self._sent = monotonic()
        except TransportError:
            if not self._latest:
                self._latest.append(state)
            raise

    def _send_state(self, state: _State) -> None:
        percent, description, report = state
        if PROGRESS_KEY not in self._ids:
            made = create_progress_artifact(percent, key=PROGRESS_KEY, description=description)
            self._ids[PROGRESS_KEY] = cast(UUID, made)  # a coroutine inside of coroutines only
            made = create_markdown_artifact(
                report, key=REPORT_KEY, description=f"Report of {self._run_id}"
            )
            self._ids[REPORT_KEY] = cast(UUID, made)
        else:
            client = get_client(sync_client=True)
            progress = ArtifactUpdate(data=percent, description=description)
            client.update_artifact(self._ids[PROGRESS_KEY], progress)
            client.update_artifact(self._ids[REPORT_KEY], ArtifactUpdate(data=report))

    def _state(self) -> _State:
        progress = self._progress
        return _State(
            percent=round(100 * progress.fraction, 1),
            description=escaped(f"{self._run_id}: {describe(progress)}"),
            report=report_of(self._run_id, progress, self._links),
        )


def describe(progress: Progress) -> str:
    """Return how far a run is, in one line."""
    total, left = progress.config.num_iterations, progress.seconds_left
    phase = progress.phase
    if progress.steps:
        phase += f" ({progress.num_steps} of {progress.steps})"
    parts = [f"{progress.num_finished} of {total} iterations", phase]
    parts.append(f"{duration(progress.elapsed_seconds)} elapsed")
    if left is not None and progress.num_finished < total:
        parts.append(f"about {duration(left)} left")
    return ", ".join(parts)


def report_of(run_id: str, progress: Progress, links: Mapping[str, str]) -> str:
    """Return a run's report as Markdown."""
    parts = [f"# {escaped(run_id)}", escaped(describe(progress))]
    if progress.warnings:
        lines = [f"- **Warning:** {inline(text)}" for text in progress.warnings[-SHOWN:]]
        parts.append("\n".join(lines))
    rewards = [value for value in progress.trend("reward/mean") if math.isfinite(value)]
    if rewards:
        svg = line_chart("mean reward of each iteration", rewards)
        parts.append(_embedded("mean reward", "svg+xml", svg.encode()))
    if progress.history and (rewards or relative(progress.config.rewards)):
        parts.append(_metrics_table(progress))
    if progress.evaluations:
        parts.append(_evaluation_table(progress.evaluations))
    links_list = [f"- {label}: {_link(target)}" for label, target in links.items()]
    return "\n\n".join([*parts, *(["\n".join(links_list)] if links_list else [])]) + "\n"


def _show_iteration(record: IterationRecord) -> None:
    text = iteration_report(record, record.timeline.result() if record.timeline else b"")
    description = f"iteration {record.iteration + 1}: metrics, devices and samples"
    create_markdown_artifact(text, key=ITERATION_KEY, description=description)


def iteration_report(record: IterationRecord, timeline: bytes) -> str:
    """Return an iteration's page as Markdown.

    Args:
        record: of the iteration.
        timeline: its picture as PNG, or nothing.
    """
    parts = [f"# iteration {record.iteration + 1}: {record.seconds:.3g} s"]
    if names := headlines(record.metrics):
        rows = [f"| {_label(n)} | {value_text(n, record.metrics)} |" for n in names]
        parts.append("\n".join(["| metric | value |", "|---|---:|", *rows]))
    if timeline:
        parts.append(_embedded("what the devices did", "png", timeline))
    parts.append(_idle_table(record))
    if record.pictures:
        parts.append(_samples_table(record.pictures))
    return "\n\n".join(parts) + "\n"


def _samples_table(pictures: Sequence[Picture]) -> str:
    """Return a row for each prompt: what is edited, if it is, and samples with their rewards."""
    rows = []
    for _, group in groupby(pictures, key=lambda picture: picture.group):
        first, *_ = shown = list(group)
        about = cell(first.prompt)
        for source in first.sources:
            about += f" {_embedded('source image', 'jpeg', source)}"
        made = (f"{_embedded(p.prompt, 'jpeg', p.jpeg)} {p.reward:.3f}" for p in shown)
        rows.append([about, *made])
    num_columns = max(map(len, rows))
    heads = ["prompt", "samples and their rewards", *[""] * num_columns][:num_columns]
    lines = [f"| {' | '.join(heads)} |", "|---" * num_columns + "|"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])


def _label(name: str) -> str:
    """Return what a metric is called, for a table; components have the names that rewards gave."""
    return cell(label_of(name)) if is_component(name) else label_of(name)


def _embedded(alt: str, kind: str, picture: bytes) -> str:
    """Return a picture inside the text."""
    alt = re.sub(r"[^\w ,.]", "", " ".join(alt.split()))
    return f"![{alt}](data:image/{kind};base64,{base64.b64encode(picture).decode()})"


def _idle_table(record: IterationRecord) -> str:
    """Return the share of busy time and of each cause that occurs, of all devices and of each."""
    idle = {"all devices": idle_causes(record.metrics), **record.idle}
    causes = [cause for cause, share in idle["all devices"].items() if share > 0]
    lines = [f"| | busy | {' | '.join(causes)} |", "|---" + "|---:" * (len(causes) + 1) + "|"]
    for name, shares in idle.items():
        values = [1 - sum(shares.values()), *(shares[cause] for cause in causes)]
        label = cell(name) if name in record.idle else name
        lines.append(f"| {label} | {' | '.join(f'{value:.0%}' for value in values)} |")
    return "\n".join(lines)


def _metrics_table(progress: Progress) -> str:
    """Return a row for each metric; of means with ±, their standard errors over the prompts."""
    first, last = progress.history[0], progress.history[-1]
    lines = ["| metric | first | last | change | trend |", "|---|---:|---:|---|---|"]
    for name in headlines(last):
        before = value_text(name, first) if name in first else ""
        trend = sparkline(progress.trend(name), 32)
        cells = [before, value_text(name, last), verdict(change_between(name, first, last)), trend]
        lines.append(f"| {_label(name)} | {' | '.join(cells)} |")
    lines += [
        f"| busy: {cell(device)} | | {share:.0%} | | |"
        for device, share in busy_fractions(last).items()
    ]
    return "\n".join(lines)


def _evaluation_table(evaluations: Mapping[str, EvaluationReport]) -> str:
    """Return a row for each component; of several evaluations, how the last differs from the first.

    ± is the standard error over the prompts.
    """
    tags = list(evaluations)
    first, last = evaluations[tags[0]], evaluations[tags[-1]]
    heads = [f"{cell(tag)} (version {evaluations[tag].version})" for tag in tags]
    heads += ["change", ""] if len(tags) > 1 else []
    lines = [f"| evaluation | {' | '.join(heads)} |", "|---" + "|---:" * len(heads) + "|"]
    names = list(dict.fromkeys(name for tag in tags for name in evaluations[tag].rewards))
    for name in names:
        reports = [evaluations[tag] for tag in tags]
        texts = [mean_text(report, name) if name in report.rewards else "" for report in reports]
        if len(tags) > 1:
            change = last.change_since(first, name)
            texts += [change_text(change), verdict(change)]
        lines.append(f"| {cell(name)} | {' | '.join(texts)} |")
    return "\n".join(lines)


def _link(target: str) -> str:
    """Return an address that can be clicked, or a command."""
    is_address = re.fullmatch(r"https?://[^\s<>]+", target) is not None
    return f"<{redacted(target)}>" if is_address else code(target)
