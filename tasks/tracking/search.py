"""Look for a run in MLflow by its name or id, and read back what it logged."""

from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from mlflow import MlflowClient
from mlflow.entities import Run
from mlflow.exceptions import MlflowException

from digen_core.checkpoints.manifest import EVALUATIONS_OF_RUN
from digen_core.errors import UserError
from tasks.tracking.environment import ENVIRONMENT_OF_RUN
from tasks.tracking.history import RunData, environment_in, newest_evaluation
from tasks.tracking.params import current_params
from tasks.tracking.server import MlflowError, first_line


def find_run(target: str, uri: str) -> RunData:
    """Return what a run logged, by its name or id.

    Raises:
        UserError: there is no such run, or MLflow does not answer.
    """
    try:
        return _logged_by(MlflowClient(uri), target)
    except MlflowError as error:
        raise UserError(
            f"there is no folder {target}, and MLflow at {uri} was no help: {first_line(error)}"
        ) from error


def _logged_by(client: MlflowClient, target: str) -> RunData:
    run = _find(client, target)
    run_id = run.info.run_id
    with TemporaryDirectory() as folder:
        try:
            path = client.download_artifacts(run_id, ENVIRONMENT_OF_RUN, folder)
            environment = environment_in(Path(path))
        except (MlflowException, OSError):  # an older run, or its files are gone
            environment = {}
        with suppress(MlflowException, OSError):  # it has none, or its files are gone
            client.download_artifacts(run_id, EVALUATIONS_OF_RUN, folder)
        evaluation = newest_evaluation(Path(folder))
    metrics = {}
    for name in run.data.metrics:
        history = client.get_metric_history(run_id, name)
        metrics[name] = sorted((metric.step, metric.value) for metric in history)
    params = current_params(run.data.params, run.data.tags)
    return RunData(run.info.run_name, params, environment, metrics, evaluation)


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
