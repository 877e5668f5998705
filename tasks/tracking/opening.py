"""The opening of a run in MLflow, new or resumed, which has to work first."""

import json
import logging
import os
from functools import cache
from getpass import getuser
from pathlib import Path
from typing import Final

from mlflow import MlflowClient
from mlflow.entities import LifecycleStage, Param, Run, RunInfo
from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import RESOURCE_DOES_NOT_EXIST, ErrorCode

from digen_core.config.run import RunConfig
from digen_core.errors import UserError
from digen_core.inputs.addresses import redacted
from tasks.tracking.delivery import EVALUATION_TAG, MAX_PARAMS_PER_CALL, PARENT_TAG
from tasks.tracking.environment import digen_version, git_revision
from tasks.tracking.params import flatten
from tasks.tracking.server import (
    MlflowError,
    alone_in,
    experiment_of,
    file_beside,
    first_line,
    share_view,
    tracking_uri,
)
from tasks.tracking.spool import RunOfSpool, Spool, evaluation_key, iteration_key

logger = logging.getLogger(__name__)

FOLDER_TAG: Final = "digen.run_dir"
COPY_TAG: Final = "digen.copy_of"
"""The run of MLflow of which the folder was a copy when this one began."""


def begin(
    config: RunConfig, run_id: str, run_dir: Path, flow_run_id: str | None
) -> tuple[MlflowClient, Spool]:
    """Make a run with its parameters and tags, and its spool.

    Raises:
        UserError: MLflow cannot be reached or does not take the run.
    """
    client, run = _begun(config, run_id, run_dir, flow_run_id)
    return client, Spool.create(run_dir, run)


def _begun(
    config: RunConfig, run_id: str, run_dir: Path, flow_run_id: str | None
) -> tuple[MlflowClient, RunOfSpool]:
    uri = tracking_uri(config)
    try:
        with alone_in(uri):
            client = MlflowClient(uri)
            experiment_id = experiment_of(client, uri, config)
            share_view(client, experiment_id)
        info = _made(client, experiment_id, config, run_id, _tags(run_dir, flow_run_id))
    except MlflowError as error:
        raise UserError(
            f"tracking: cannot start a run in MLflow at {uri}: {first_line(error)}"
        ) from error
    return client, _run_of(uri, info)


def _made(
    client: MlflowClient, experiment_id: str, config: RunConfig, name: str, tags: dict[str, str]
) -> RunInfo:
    """Make a run of MLflow, with the config's parameters."""
    params = [Param(key, value) for key, value in flatten(config.model_dump()).items()]
    info: RunInfo = client.create_run(experiment_id, run_name=name, tags=tags).info
    for start in range(0, len(params), MAX_PARAMS_PER_CALL):
        client.log_batch(info.run_id, params=params[start : start + MAX_PARAMS_PER_CALL])
    return info


def _run_of(uri: str, info: RunInfo) -> RunOfSpool:
    return RunOfSpool(
        uri=uri, experiment_id=info.experiment_id, mlflow_run_id=info.run_id, name=info.run_name
    )


def go_on(
    config: RunConfig, run_dir: Path, mlflow_run_id: str | None = None
) -> tuple[MlflowClient, Spool]:
    """Find the run that a folder names, or one by its id, and open its spool.

    Where the folder is a copy of one that is still there, it becomes a run of its own; where MLflow
    has no such run any more, another one is told all that the folder's had logged.

    Raises:
        UserError: MLflow cannot be reached, or the folder names no run.
    """
    spool = Spool.open(run_dir)
    run_id = spool.run.mlflow_run_id if spool else mlflow_run_id
    if run_id is None:
        raise UserError(f"{run_dir} does not say which run of MLflow it is")
    uri = _uri_of(spool, config)
    try:
        client = MlflowClient(uri)
        found = _found(client, run_id)
        if found is None:
            logger.warning(
                "MLflow at %s does not have the run that %s began there: a new one is told all "
                "that it had logged",
                redacted(uri),
                run_dir,
            )
            client, run = _begun(config, run_dir.name, run_dir, None)
            return client, Spool.restart(run_dir, run)
        if original_of(found, run_dir) is not None:
            tags = _tags(run_dir, None) | {COPY_TAG: run_id}
            info = _made(client, found.info.experiment_id, config, run_dir.name, tags)
            return client, Spool.restart(run_dir, _run_of(uri, info))
        if found.data.tags.get(FOLDER_TAG) != str(run_dir.resolve()):  # it moved
            client.set_tag(run_id, FOLDER_TAG, str(run_dir.resolve()))
        logged = () if spool else _logged_in(client, found.info)
    except MlflowError as error:
        raise UserError(
            f"tracking: cannot continue run {run_id} in MLflow at {uri}: {first_line(error)}; "
            "name the MLflow that it began in: tracking.mlflow_uri"
        ) from error
    return client, Spool.create(run_dir, _run_of(uri, found.info), logged)


def original_of(run: Run, run_dir: Path) -> Path | None:
    """Return the folder of a run of MLflow, if that is there still, and another one than this."""
    folder = run.data.tags.get(FOLDER_TAG)
    if folder in (None, str(run_dir.resolve())) or not _is_of(Path(folder), run.info.run_id):
        return None
    return Path(folder)


def _found(client: MlflowClient, run_id: str) -> Run | None:
    """Return a run of MLflow; None: it has none of that id, or somebody deleted it."""
    try:
        found: Run = client.get_run(run_id)
    except MlflowException as error:
        if error.error_code != ErrorCode.Name(RESOURCE_DOES_NOT_EXIST):
            raise
        return None
    return None if found.info.lifecycle_stage == LifecycleStage.DELETED else found


def _uri_of(spool: Spool | None, config: RunConfig) -> str:
    """Return the address of MLflow of a run that goes on, from whatever folder digen is called."""
    if spool and config.tracking.uri is None and spool.run.uri == file_beside(spool.run_dir):
        return spool.run.uri
    return tracking_uri(config)


def _is_of(folder: Path, mlflow_run_id: str) -> bool:
    """Say whether a folder is there, and that of a run of MLflow."""
    try:
        spool = Spool.open(folder)
    except OSError:  # another user's
        return False
    return spool is not None and spool.run.mlflow_run_id == mlflow_run_id


def _logged_in(client: MlflowClient, run: RunInfo) -> set[str]:
    """Return the keys of iterations and evaluations that MLflow has of a run, whole.

    For a run whose folder forgot what it logged.
    """

    @cache
    def steps_of(metric: str) -> set[int]:
        return {point.step for point in client.get_metric_history(run.run_id, metric)}

    def is_whole(one: Run) -> bool:
        version, metrics = one.data.params.get("policy_version", ""), sorted(one.data.metrics)[:1]
        in_curves = all(version in map(str, steps_of(metric)) for metric in metrics)
        return one.info.status == "FINISHED" and in_curves  # these come last, and all at once

    nested = client.search_runs([run.experiment_id], f"tags.`{PARENT_TAG}` = '{run.run_id}'")
    evaluations = {
        evaluation_key(one.data.tags.get(EVALUATION_TAG, "")) for one in nested if is_whole(one)
    }
    return evaluations.union(map(iteration_key, steps_of("time/iteration_seconds")))


def _tags(run_dir: Path, flow_run_id: str | None) -> dict[str, str]:
    tags = {
        "digen.version": digen_version(),
        FOLDER_TAG: str(run_dir.resolve()),
        "mlflow.source.name": "digen",
        "mlflow.source.type": "LOCAL",
        "mlflow.user": _user(),
    }
    revision = git_revision()
    if revision is not None:
        tags["mlflow.source.git.commit"] = revision.removesuffix("-dirty")
        tags["digen.source_changed"] = json.dumps(revision.endswith("-dirty"))
    if flow_run_id is not None:
        tags["prefect.flow_run_id"] = flow_run_id
    return tags


def _user() -> str:
    """Return who runs this: a name, or in a container that knows none a number."""
    try:
        return getuser()
    except (KeyError, OSError):  # OSError: Python 3.13 and newer
        return str(os.getuid())
