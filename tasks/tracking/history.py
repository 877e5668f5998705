"""Read back what a run logged: from its folder, or from MLflow."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from mlflow import MlflowClient
from mlflow.entities import Run
from mlflow.exceptions import MlflowException

from digen_core.checkpoints.manifest import EVALUATIONS_OF_RUN
from digen_core.checkpoints.retention import evaluations_of
from digen_core.config.load import tree_of_run
from digen_core.errors import UserError
from digen_core.records import EvaluationReport
from digen_core.transport.entries import FOLDER, read_entries
from tasks.tracking.environment import ENVIRONMENT_OF_RUN, read_environment
from tasks.tracking.opening import flatten
from tasks.tracking.server import MlflowError, first_line

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
    try:
        return _from_mlflow(MlflowClient(uri), target)
    except MlflowError as error:
        raise UserError(
            f"there is no folder {target}, and MLflow at {uri} was no help: {first_line(error)}"
        ) from error


def _from_folder(run_dir: Path) -> RunData:
    if not (run_dir / FOLDER).is_dir():
        raise UserError(f"{run_dir} is no run that was tracked: it has no folder {FOLDER}")
    config = tree_of_run(run_dir)
    metrics: dict[str, dict[int, float]] = {}
    for entry in read_entries(run_dir):
        is_point = entry["kind"] == "metrics" or (
            entry["kind"] == "evaluation" and entry.get("in_training")
        )
        step, values = entry.get("step"), entry.get("metrics")
        if is_point and isinstance(step, int) and isinstance(values, dict):  # else it is damaged
            for name, value in values.items():
                metrics.setdefault(name, {})[step] = value
    return RunData(
        name=run_dir.name,
        config=flatten(config),
        environment=_environment_of(run_dir / ENVIRONMENT_OF_RUN),
        metrics={name: sorted(points.items()) for name, points in metrics.items()},
        evaluation=_newest(run_dir),
    )


def _newest(folder: Path) -> EvaluationReport | None:
    """Return the evaluation of the newest version of those that lie in a folder's evaluation/."""
    return max(evaluations_of(folder).values(), key=lambda own: own.version, default=None)


def _environment_of(path: Path) -> dict[str, str]:
    try:
        return read_environment(path.read_text(encoding="utf-8", errors="replace"))
    except OSError:  # of an older run, or gone
        return {}


def _from_mlflow(client: MlflowClient, target: str) -> RunData:
    run = _find(client, target)
    run_id = run.info.run_id
    with TemporaryDirectory() as folder:
        try:
            path = client.download_artifacts(run_id, ENVIRONMENT_OF_RUN, folder)
            environment = _environment_of(Path(path))
        except (MlflowException, OSError):  # an older run, or its files are gone
            environment = {}
        with suppress(MlflowException, OSError):  # it has none, or its files are gone
            client.download_artifacts(run_id, EVALUATIONS_OF_RUN, folder)
        evaluation = _newest(Path(folder))
    metrics = {}
    for name in run.data.metrics:
        history = client.get_metric_history(run_id, name)
        metrics[name] = sorted((metric.step, metric.value) for metric in history)
    return RunData(run.info.run_name, run.data.params, environment, metrics, evaluation)


def _find(client: MlflowClient, target: str) -> Run:
    """Return a run of any experiment by its name or id.

    Raises:
        UserError: there is none, or several have the name.
    """
    experiments = [experiment.experiment_id for experiment in client.search_experiments()]
    for key in ("run_name", "run_id"):
        if found := client.search_runs(experiments, f"attributes.{key} = '{target}'"):
            if len(found) > 1:
                ids = ", ".join(run.info.run_id for run in found)
                raise UserError(f"several runs are called {target}; give an id: {ids}")
            return found[0]
    raise UserError(f"there is no run {target}, neither as a folder nor in MLflow")
