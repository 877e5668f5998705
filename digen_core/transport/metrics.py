"""The run's metrics on disk: one JSON file per finished iteration, written after all else of it."""

import json
from pathlib import Path
from typing import Final

from digen_core.records import IterationRecord
from digen_core.transport.files import replace_text

METRICS_OF_RUN: Final = "metrics"
"""Folder in a run's folder."""


def write_metrics(metrics_dir: Path, record: IterationRecord) -> None:
    """Write the metrics of one iteration; a file of the same iteration is replaced."""
    metrics_dir.mkdir(parents=True, exist_ok=True)
    tree = {
        "iteration": record.iteration,
        "version": record.version,
        "seconds": record.seconds,
        "metrics": record.metrics,
    }
    replace_text(metrics_dir / f"iteration-{record.iteration:06d}.json", json.dumps(tree, indent=2))


def read_metrics(metrics_dir: Path) -> list[IterationRecord]:
    """Return the records of all finished iterations, in order, without samples and spans."""
    paths = sorted(metrics_dir.glob("iteration-*.json"))
    return [IterationRecord(**json.loads(path.read_text(encoding="utf-8"))) for path in paths]
