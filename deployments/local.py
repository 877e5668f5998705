"""Run digen's flows from a terminal: live view, one-line errors, and a Prefect server if needed."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from digen_core.config import ConfigError, RunConfig
from digen_core.records import EvaluationReport, RunReport


class RunFailedError(RuntimeError):
    """A run that had started failed; the message is one line for the user."""


def run_training(config: RunConfig) -> RunReport:
    """Train as the config says, and show it live.

    Raises:
        ConfigError: the input cannot be used; nothing was started.
        RunFailedError: the run failed later; what it had done is kept.
    """
    from deployments.live_view import LiveView
    from flows.post_train import post_train
    from flows.session import watching

    with _failures_in_one_line(), LiveView(config, config.name) as view, watching(view):
        report: RunReport = post_train(config)
        return report


def run_evaluation(
    run_dir: Path, prompts: Path | None, samples_per_prompt: int | None
) -> EvaluationReport:
    """Judge the last version of a run.

    Args:
        run_dir: folder of the run.
        prompts: file of other prompts than the run's evaluation prompts.
        samples_per_prompt: other than the run's.

    Raises:
        ConfigError: the folder is not a run's, or holds no version yet.
        RunFailedError: the evaluation failed.
    """
    from flows.evaluate_run import evaluate_run

    with _failures_in_one_line():
        report: EvaluationReport = evaluate_run(run_dir, prompts, samples_per_prompt)
        return report


@contextmanager
def _failures_in_one_line() -> Iterator[None]:
    """Let a ConfigError pass, turn every other error into RunFailedError, keep logs quiet."""
    for name in ("prefect", "prefect.flow_runs", "distributed"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    try:
        yield
    except ConfigError:
        raise
    except Exception as error:
        text = " ".join(str(error).split())
        raise RunFailedError(f"the run failed: {type(error).__name__}: {text}") from error
