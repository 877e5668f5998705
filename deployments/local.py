"""Run digen's flows from a terminal: live view, one-line errors, and a Prefect server if needed."""

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import copy
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from deployments.errors import RunFailedError, RunStoppedError
from deployments.stopping import TERMINATED
from digen_core.checkpoints.judging import Judging, judged_config
from digen_core.checkpoints.run_state import holder_of
from digen_core.config.run import RunConfig
from digen_core.config.schedule import mlflow_of_environment
from digen_core.errors import UserError
from digen_core.inputs.importing import require_not_imported
from digen_core.records import EvaluationReport, RunReport

if TYPE_CHECKING:
    from prefect import Flow

    from deployments.operation.prefect_server import PrefectApi
    from deployments.views.live_view import LiveView

T = TypeVar("T")

SETTINGS = {
    # What happens is on the live view and, in full, in Prefect's UI.
    "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "CRITICAL",
    "PREFECT_LOGGING_INTERNAL_LEVEL": "CRITICAL",  # of what it sends, tried again where it fails
    "TRANSFORMERS_VERBOSITY": "error",
}


def run_training(config: RunConfig, resume: Path | None = None) -> RunReport:
    """Train as the config says, and show it live.

    Args:
        config: of the run.
        resume: folder of a run to resume; None starts a new one.

    Raises:
        UserError: the input cannot be used, as was found before anything started or by a worker.
        RunFailedError: the run failed later; what it had done is kept.
        RunStoppedError: somebody stopped it.
    """
    with orchestrated(config) as view:
        from prefect.exceptions import CancelledRun

        from flows.post_train import post_train
        from flows.runtime.observers import watching

        with watching(view):
            try:
                report = called(post_train, config, str(resume) if resume else None)
            except CancelledRun as error:
                raise RunStoppedError(str(error)) from None
            return cast("RunReport", report)


def run_evaluation(run_dir: Path, asked: Judging, warn: Callable[[str], None]) -> EvaluationReport:
    """Judge the last version of a run.

    Args:
        run_dir: folder of the run.
        asked: prompts, samples and rewards, if not those of the run's own evaluation.
        warn: is called with what a reward does wrong whose failure does not end the evaluation.

    Raises:
        UserError: the folder is not a run's, holds no whole version, or a setting is wrong.
        RunFailedError: the evaluation failed.
    """
    config = judged_config(run_dir, asked)

    from digen_core.preflight.reward_probe import probe_before_start
    from digen_core.preflight.run import check_judged

    check_judged(config, run_dir, asked)  # refused before anything starts
    probe_before_start(config, warn, is_evaluation=True)
    mlflow_of_environment()
    with orchestrated(config, evaluated=run_dir) as view:
        from flows.evaluate_run import evaluate_run
        from flows.runtime.observers import watching

        with watching(view):
            report: EvaluationReport = called(
                evaluate_run,
                str(run_dir),
                asked.prompts,
                asked.samples_per_prompt,
                asked.suite,
                dict(asked.settings),
            )
        return report


def called(flow: "Flow[..., T]", *arguments: object) -> T:
    """Call a flow. How its body ended counts, also where Prefect cannot be told of it.

    Raises:
        Exception: what the body raises, or Prefect before that.
        CancelledRun: the flow ended as cancelled.
        SystemExit: the process is to end, and Prefect took the signal.
    """
    from prefect import State
    from prefect.exceptions import CancelledRun, TerminationSignal

    from flows.runtime.observers import warn

    ended: list[T | BaseException] = []
    own = copy(flow)
    own.fn = _noting(flow.fn, ended)
    try:
        return own(*arguments)
    except (Exception, KeyboardInterrupt) as error:
        if not ended or error is ended[0] or isinstance(error, CancelledRun):
            raise
        why = " ".join(f"{type(error).__name__}: {error}".split())
        warn(f"Prefect could not be told how the run ended, and may show it as running: {why}")
    if isinstance(ended[0], TerminationSignal):
        raise SystemExit(TERMINATED)
    if isinstance(ended[0], BaseException):
        raise ended[0]
    if isinstance(ended[0], State):
        raise CancelledRun(ended[0].message)
    return ended[0]


def _noting(body: "Callable[..., T]", ended: "list[T | BaseException]") -> "Callable[..., T]":
    """Return the body of a flow, but it notes what it returns or raises."""

    @wraps(body)
    def call(*arguments: object, **parameters: object) -> T:
        try:
            result = body(*arguments, **parameters)
        except BaseException as error:
            ended.append(error)
            raise
        ended.append(result)
        return result

    return call


def pause_run(run_dir: Path, flow_run_id: str, off: bool) -> None:
    """Have a run of which Prefect knows paused, or continued.

    Args:
        run_dir: folder of the run.
        flow_run_id: of the run in Prefect.
        off: let it continue.

    Raises:
        UserError: no server of Prefect answers, or the run does not run.
    """
    if not off and holder_of(run_dir) is None:  # one that is to continue may have no process
        raise UserError(f"{run_dir} is not being trained; 'digen ls' lists what is")
    apply_settings()
    from prefect.states import Paused, Running, State

    from deployments.operation.prefect_server import set_state

    state: State[Any] = Running() if off else Paused()
    set_state(run_dir.resolve().parent, flow_run_id, state, "paused" if off else "running")


@contextmanager
def orchestrated(config: RunConfig, evaluated: Path | None = None) -> "Iterator[LiveView]":
    """Run the body with a Prefect server and a live view, and turn errors into one line.

    Args:
        config: of the run.
        evaluated: folder of the run that is only evaluated; None: it is trained.
    """
    from deployments.views.live_view import LiveView
    from tasks.cluster.start_method import import_ahead
    from tasks.tracking.also.places import check_places

    require_not_imported()
    if evaluated is None:
        check_places(config)
    apply_settings()
    logging.raiseExceptions = False  # that a server is away is said once, not for each line of logs
    name = evaluated.resolve().name if evaluated else config.name
    view = LiveView(config, name, trains=evaluated is None)
    with failures_in_one_line(), view:
        view.on_phase("starting Prefect")
        if config.cluster.address is None:
            import_ahead(config.cluster.threads_per_worker)
        with prefect_ready(Path(config.tracking.runs_dir)) as api:
            view.on_prefect(api)
            yield view


@contextmanager
def prefect_ready(log_dir: Path) -> "Iterator[PrefectApi]":
    """Yield a Prefect server, one of our own if none is configured."""
    apply_settings()
    from deployments.operation.prefect_server import prefect_server

    with prefect_server(log_dir) as api:
        yield api


def apply_settings() -> None:
    """Set how Prefect and transformers log, before either is imported."""
    for name, value in SETTINGS.items():
        os.environ.setdefault(name, value)


@contextmanager
def failures_in_one_line(what: str = "the run") -> Iterator[None]:
    """Turn every error into RunFailedError that does not speak to the user already."""
    try:
        yield
    except (UserError, RunStoppedError):
        raise
    except Exception as error:
        text = "; ".join([f"{type(error).__name__}: {error}", *getattr(error, "__notes__", [])])
        raise RunFailedError(f"{what} failed: {' '.join(text.split())}") from error
