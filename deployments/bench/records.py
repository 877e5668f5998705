"""An observer of runs that the benchmarks share."""

from pathlib import Path

from digen_core.records import EvaluationReport, IterationRecord


class Records:
    """Keeps the records of the iterations that it sees."""

    def __init__(self) -> None:
        self.seen: list[IterationRecord] = []

    def on_phase(self, text: str) -> None:
        """Nothing to keep."""

    def on_step(self, done: int, total: int) -> None:
        """Nothing to keep."""

    def on_open(self, run_dir: Path) -> None:
        """Nothing to keep."""

    def on_stop(self, why: str) -> None:
        """Nothing to keep."""

    def on_warning(self, text: str) -> None:
        """Nothing to keep."""

    def on_iteration(self, record: IterationRecord) -> None:
        """Keep the record."""
        self.seen.append(record)

    def on_evaluation(self, tag: str, report: EvaluationReport) -> None:
        """Nothing to keep."""
