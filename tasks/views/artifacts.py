"""A run's page in Prefect: a progress bar and a report, kept up to date as artifacts of its flow.

Each iteration has a page of its own, as an artifact of its flow run: metrics, what the devices did
and waited for, and some samples with their rewards.

What stands on the pages `report.py` says.
"""

import logging
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextvars import copy_context
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Event, Lock
from time import monotonic
from types import TracebackType
from typing import Any, Final, NamedTuple, Self, cast
from uuid import UUID

from httpx import TransportError
from prefect.artifacts import create_markdown_artifact, create_progress_artifact
from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import ArtifactUpdate
from tenacity import (
    Retrying,
    retry_if_exception_type,
    sleep_using_event,
    stop_after_delay,
    stop_when_event_set,
    wait_fixed,
)

from digen_core.config.run import RunConfig
from digen_core.records import EvaluationReport, IterationRecord
from tasks.unanswered import UNANSWERED
from tasks.views.display import Progress
from tasks.views.markdown import escaped
from tasks.views.report import describe, iteration_report, report_of
from tasks.views.retention import drop_iterations

logger = logging.getLogger(__name__)

PROGRESS_KEY: Final = "digen-progress"
REPORT_KEY: Final = "digen-report"
ITERATION_KEY: Final = "digen-iteration"
LAST_WORD_SECONDS: Final = 60.0
"""How long the end of a run waits for Prefect's API."""
STOPPED_SECONDS: Final = 3.0
"""How long that of one does which somebody stopped: it has few seconds in all."""
RETRY_SECONDS: Final = 2.0
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
        self._patience = LAST_WORD_SECONDS

    def hurry(self) -> None:
        """Let the last state be sent in a few seconds, or not at all."""
        self._patience = STOPPED_SECONDS

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
        done, _ = wait(self._calls, timeout=self._patience)
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

    def on_resume(self, num_iterations: int) -> None:
        """Show from where the run goes on."""
        self._progress.stand_at(num_iterations)
        self._publish()

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
        # While Prefect's server is away, pages wait for it: samples and spans are not on them.
        shown = replace(record, samples=[], spans=[], crossings=[])
        todo: list[Callable[[], Any]] = [partial(_show_iteration, shown)]
        keep = self._progress.config.tracking.keep_in_prefect
        if keep != "all" and record.iteration >= keep:  # else there is none to let go
            todo.append(partial(drop_iterations, self._run_id, keep))
        for call in todo:
            attempt = partial(self._attempt, call)
            self._calls.append(self._pages.submit(copy_context().run, attempt))

    def on_evaluation(self, tag: str, report: EvaluationReport) -> None:
        """Show an evaluation."""
        self._progress.add_evaluation(tag, report)
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
        except UNANSWERED as error:
            if self._warning.acquire(blocking=False):
                logger.warning(
                    "Prefect's API did not take the artifacts of %s; the run goes on and says "
                    "this once: %s",
                    self._run_id,
                    " ".join(str(error).split()) or type(error).__name__,
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


def _show_iteration(record: IterationRecord) -> None:
    text = iteration_report(record, record.timeline.result() if record.timeline else b"")
    description = f"iteration {record.iteration + 1}: metrics, devices and samples"
    create_markdown_artifact(text, key=ITERATION_KEY, description=description)
