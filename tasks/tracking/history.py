"""Read back what a run logged: from its folder, or from MLflow."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from digen_core.checkpoints.retention import evaluations_of
from digen_core.config.load import tree_of_run
from digen_core.errors import UserError
from digen_core.records import EvaluationReport
from digen_core.transport.entries import FOLDER, Entry, read_entries
from tasks.tracking.environment import ENVIRONMENT_OF_RUN, read_environment
from tasks.tracking.params import flatten

Points = list[tuple[int, float]]
"""Steps and values of a metric, in order."""


@dataclass(frozen=True, slots=True)
class RunData:
    """What a run logged."""

    name: str
    config: Mapping[str, str]  # every key, flattened
    environment: Mapping[str, str]  # versions of packages and facts of the machine, by name
    metrics: Mapping[str, Points]
    evaluation: EvaluationReport | None  # the newest of training; None: there is none


class _Point(BaseModel):
    """What an entry tells of metrics."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False)

    step: int
    metrics: dict[str, float]


def read_run(target: str, uri: str) -> RunData:
    """Return what a run logged.

    Args:
        target: its folder, or its name or id in MLflow.
        uri: address of MLflow.

    Raises:
        UserError: there is no such run, or it logged nothing.
    """
    if Path(target).is_dir():
        return _from_folder(Path(target))
    from tasks.tracking.search import find_run  # imports MLflow, which takes seconds

    return find_run(target, uri)


def _from_folder(run_dir: Path) -> RunData:
    if not (run_dir / FOLDER).is_dir():
        raise UserError(f"{run_dir} is no run that was tracked: it has no folder {FOLDER}")
    config = tree_of_run(run_dir)
    metrics: dict[str, dict[int, float]] = {}
    for entry in read_entries(run_dir):
        is_point = entry["kind"] == "metrics" or (
            entry["kind"] == "evaluation" and entry.get("in_training")
        )
        if is_point and (point := _point_of(entry)):
            for name, value in point.metrics.items():
                metrics.setdefault(name, {})[point.step] = value
    return RunData(
        name=run_dir.name,
        config=flatten(config),
        environment=environment_in(run_dir / ENVIRONMENT_OF_RUN),
        metrics={name: sorted(points.items()) for name, points in metrics.items()},
        evaluation=newest_evaluation(run_dir),
    )


def _point_of(entry: Entry) -> _Point | None:
    """Return the metrics that an entry tells; None if it is damaged."""
    try:
        return _Point.model_validate(entry)
    except ValidationError:
        return None


def newest_evaluation(folder: Path) -> EvaluationReport | None:
    """Return the evaluation of the newest version of those that lie in a folder's evaluation/."""
    return max(evaluations_of(folder).values(), key=lambda own: own.version, default=None)


def environment_in(path: Path) -> dict[str, str]:
    """Return what an environment.txt says, by name; nothing if it is not there."""
    try:
        return read_environment(path.read_text(encoding="utf-8", errors="replace"))
    except OSError:  # of an older run, or gone
        return {}
