"""Delivery of a spool to MLflow: what is delivered twice has the effect of doing so once.

| kind | what it holds | how it counts once |
|---|---|---|
| metrics | values, step, time | MLflow keeps one point of the same name, step, time and value |
| tags, status | words | the last ones count |
| file | a file or folder of the run's folder | it replaces itself |
| evaluation | metrics and parameters | a nested run, found again by its tag |
| model | a folder that MLflow can load | a model, found again by its run |
"""

import logging
import re
from collections.abc import Mapping, Sequence
from typing import Final

from mlflow import MlflowClient
from mlflow.entities import LoggedModel, LoggedModelOutput, LoggedModelStatus, Metric, Param, Run
from mlflow.exceptions import MlflowException

from digen_core.transport.entries import Entry
from digen_core.transport.files import inside
from tasks.tracking.spool import Spool

logger = logging.getLogger(__name__)

MAX_METRICS_PER_CALL: Final = 1000  # MLflow's limits
MAX_PARAMS_PER_CALL: Final = 100

EVALUATION_TAG: Final = "digen.evaluation"
Sized = tuple[Entry, int]
"""An entry and its length in bytes."""

_NOT_IN_NAMES: Final = re.compile(r"""[/:.%"']""")
"""Of models of a run; the registry takes all but the first two."""

PARENT_TAG: Final = "mlflow.parentRunId"
NOTE_TAG: Final = "mlflow.note.content"


class Delivery:
    """Tells MLflow the entries of one run."""

    def __init__(self, client: MlflowClient, spool: Spool) -> None:
        self._client = client
        self._spool = spool
        self._run = spool.run
        self._run_dir = spool.run_dir

    def deliver(self, entries: Sequence[Entry]) -> None:
        """Deliver entries that ``batches`` put together.

        Raises:
            Exception: MLflow did not take them; some of them may have arrived.
        """
        if entries[0]["kind"] == "metrics":
            metrics = [metric for entry in entries for metric in _metrics_of(entry)]
            for start in range(0, len(metrics), MAX_METRICS_PER_CALL):
                batch = metrics[start : start + MAX_METRICS_PER_CALL]
                self._client.log_batch(self._run.mlflow_run_id, metrics=batch)
            return
        (entry,) = entries
        getattr(self, f"_deliver_{entry['kind']}")(entry)

    def answers(self) -> bool:
        """Return whether MLflow can be reached and has the run."""
        try:
            self._client.get_run(self._run.mlflow_run_id)
        except Exception:
            return False
        return True

    def _deliver_tags(self, entry: Entry) -> None:
        for name, value in entry["tags"].items():
            self._client.set_tag(self._run.mlflow_run_id, name, value)

    def _deliver_status(self, entry: Entry) -> None:
        if entry["message"]:
            self._client.set_tag(self._run.mlflow_run_id, NOTE_TAG, entry["message"])
        if entry["status"] == "RUNNING":
            self._client.update_run(self._run.mlflow_run_id, "RUNNING")
        else:
            self._client.set_terminated(
                self._run.mlflow_run_id, entry["status"], end_time=entry["time"]
            )

    def _deliver_file(self, entry: Entry) -> None:
        run_ids = [self._run.mlflow_run_id]
        if "evaluation" in entry:
            if self._spool.is_replaced(entry):
                self._note_replaced(entry)
                return
            nested = self._evaluation_run(entry["evaluation"])
            run_ids = [nested.info.run_id] + (run_ids if entry["in_training"] else [])
        for run_id in run_ids:
            self._log_path(run_id, entry["path"], entry["folder"])

    def _log_path(self, run_id: str, path: str, folder: str) -> None:
        source = inside(self._run_dir, path)
        if source.is_dir():
            self._client.log_artifacts(run_id, str(source), folder or None)
        else:
            self._client.log_artifact(run_id, str(source), folder or None)

    def _deliver_evaluation(self, entry: Entry) -> None:
        """Tell an evaluation as a nested run; one in training is a point of the run's curves too.

        The nested run is closed at once: its pictures come later, which MLflow allows.
        """
        nested = self._evaluation_run(entry["evaluation"])
        metrics = _metrics_of(entry)
        params = [Param(name, value) for name, value in entry["params"].items()]
        for start in range(0, len(params), MAX_PARAMS_PER_CALL):
            batch = params[start : start + MAX_PARAMS_PER_CALL]
            self._client.log_batch(nested.info.run_id, params=batch)
        self._client.log_batch(nested.info.run_id, metrics=metrics)
        self._client.set_terminated(nested.info.run_id, "FINISHED", end_time=entry["time"])
        if entry["in_training"]:
            self._client.log_batch(self._run.mlflow_run_id, metrics=metrics)

    def _evaluation_run(self, name: str) -> Run:
        """Return the nested run of an evaluation, which is made if it is not there."""
        run = self._run
        found = self._client.search_runs(
            [run.experiment_id],
            f"tags.`{PARENT_TAG}` = '{run.mlflow_run_id}' and tags.`{EVALUATION_TAG}` = '{name}'",
        )
        if found:
            return found[0]
        tags = {PARENT_TAG: run.mlflow_run_id, EVALUATION_TAG: name}
        return self._client.create_run(run.experiment_id, tags=tags, run_name=f"{run.name}-{name}")

    def _deliver_model(self, entry: Entry) -> None:
        """Log a folder as a model of the run, and make it the next version of its name.

        One that is not there yet, and that a later one has taken the place of, is left out.
        """
        client, run = self._client, self._run
        models = client.search_logged_models(
            [run.experiment_id], f"source_run_id = '{run.mlflow_run_id}'"
        )
        model = next((model for model in models if _is_of(model.tags, entry)), None)
        if model is None or model.status != LoggedModelStatus.READY:
            if self._spool.is_replaced(entry):
                self._note_replaced(entry)
                return
            model = model or client.create_logged_model(
                run.experiment_id,
                name=_NOT_IN_NAMES.sub("-", entry["name"]),
                source_run_id=run.mlflow_run_id,
                tags=entry["tags"],
                model_type=entry["model_type"],
            )
            folder = inside(self._run_dir, entry["path"])
            client.log_model_artifacts(model.model_id, str(folder))
            client.finalize_logged_model(model.model_id, LoggedModelStatus.READY)
        made = client.get_run(run.mlflow_run_id).outputs
        if not made or all(own.model_id != model.model_id for own in made.model_outputs):
            output = LoggedModelOutput(model.model_id, entry["step"])
            client.log_outputs(run.mlflow_run_id, [output])
        self._register(entry, model)

    def _note_replaced(self, entry: Entry) -> None:
        logger.warning(
            "%s of %s is not told to MLflow: the run has gone on since, and its folder holds a "
            "later one",
            entry["key"],
            self._run.name,
        )

    def _register(self, entry: Entry, model: LoggedModel) -> None:
        client, name, run_id = self._client, entry["name"], self._run.mlflow_run_id
        try:
            client.create_registered_model(name)
        except MlflowException as error:
            if error.error_code != "RESOURCE_ALREADY_EXISTS":
                raise
        # A filter by the name would not take one with a quote.
        own = client.search_model_versions(f"run_id = '{run_id}'")
        if any(version.name == name and _is_of(version.tags, entry) for version in own):
            return
        client.create_model_version(
            name, model.artifact_location, run_id, tags=entry["tags"], model_id=model.model_id
        )


def batches(entries: Sequence[Sized]) -> list[list[Sized]]:
    """Put neighbours together that are sent in one call: entries of metrics."""
    parts: list[list[Sized]] = []
    for pair in entries:
        is_metrics = pair[0]["kind"] == "metrics"
        if parts and is_metrics and parts[-1][0][0]["kind"] == "metrics":
            parts[-1].append(pair)
        else:
            parts.append([pair])
    return parts


def _is_of(tags: Mapping[str, str], entry: Entry) -> bool:
    """Return whether all tags of an entry are among those that MLflow has."""
    wanted: dict[str, str] = entry["tags"]
    return wanted.items() <= dict(tags).items()


def _metrics_of(entry: Entry) -> list[Metric]:
    return [
        Metric(name, value, entry["time"], entry["step"])
        for name, value in entry["metrics"].items()
    ]
