"""A tracker that reports to nobody: with it, a benchmark measures what tracking costs."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from digen_core.records import EvaluationReport, IterationRecord
from tasks.tracking.tracker import Tracker


class Untracked(Tracker):
    """Takes what a run logs, and does nothing with it."""

    def __init__(self) -> None:
        """There is nothing to prepare."""
        self.mlflow_run_id = ""

    def log_iteration(self, record: IterationRecord) -> None:
        """Do nothing."""

    def log_profiles(self, iteration: int) -> None:
        """Do nothing."""

    def log_versions(self, hashes: Mapping[int, str]) -> None:
        """Do nothing."""

    def log_evaluation(self, tag: str, report: EvaluationReport) -> str:
        """Do nothing."""
        return tag

    def log_images(self, name: str, prompts: Sequence[str], images: np.ndarray, step: int) -> None:
        """Do nothing."""

    def log_model(self, weights: Path, version: int, weights_hash: str) -> None:
        """Do nothing."""

    def finish(self, status: str, message: str = "") -> None:
        """Do nothing."""

    def describe(self) -> str:
        """Return that there is nothing to look at."""
        return "not tracked"
