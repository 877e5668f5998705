"""The run's metrics on disk: one JSON file per finished iteration, written after all else of it."""

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from digen_core.inputs.reading import reason_of
from digen_core.records import IterationRecord
from digen_core.strict import Strict
from digen_core.transport.files import make_folder, replace_text

logger = logging.getLogger(__name__)

METRICS_OF_RUN: Final = "metrics"
"""Folder in a run's folder."""


class _Kept(Strict):
    """What is kept of an iteration."""

    iteration: int
    version: int
    seconds: float
    metrics: dict[str, float]


def write_metrics(metrics_dir: Path, record: IterationRecord) -> None:
    """Write the metrics of one iteration; a file of the same iteration is replaced."""
    make_folder(metrics_dir)
    kept = _Kept(
        iteration=record.iteration,
        version=record.version,
        seconds=record.seconds,
        metrics=record.metrics,
    )
    path = metrics_dir / f"iteration-{record.iteration:06d}.json"
    replace_text(path, kept.model_dump_json(indent=2))


def read_metrics(metrics_dir: Path) -> list[IterationRecord]:
    """Return the records of all finished iterations, in order, without samples and spans.

    A damaged file is left out, with a warning: a run can continue without it.
    """
    return list(_readable(sorted(metrics_dir.glob("iteration-*.json"))))


def last_metrics(metrics_dir: Path) -> IterationRecord | None:
    """Return the record of the last finished iteration, None if there is none; it alone is read.

    A damaged file is left out, as of all.
    """
    return next(_readable(sorted(metrics_dir.glob("iteration-*.json"), reverse=True)), None)


def _readable(paths: list[Path]) -> Iterator[IterationRecord]:
    for path in paths:
        try:
            kept = _Kept.model_validate_json(path.read_bytes())
            yield IterationRecord(**kept.model_dump())
        except (OSError, ValueError) as error:
            logger.warning("%s is damaged and left out: %s", path, reason_of(error))
