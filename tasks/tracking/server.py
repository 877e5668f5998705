"""Reach MLflow: a server, or the SQLite file of the runs' folder."""

import fcntl
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from shlex import quote
from typing import Final

from mlflow import MlflowClient
from mlflow.exceptions import MlflowException
from requests import RequestException
from sqlalchemy.exc import SQLAlchemyError

from digen_core.config.run import RunConfig
from digen_core.config.schedule import SQLITE, database_in, mlflow_of_environment
from digen_core.errors import UserError
from digen_core.inputs.addresses import redacted
from tasks.tracking.view import KEY, VIEW_TAG, view_state

# Its lines tell of tables that it makes, and of versions of torch that it writes down otherwise.
logging.getLogger("mlflow").setLevel(logging.ERROR)
# A traceback of each call while the database fails, as on a full disk: it raises, too.
logging.getLogger("mlflow.store.db.utils").setLevel(logging.CRITICAL)

DATABASE_OF_RUNS: Final = "mlflow.db"  # in the folder of all runs
KEY_OF_VIEW: Final = "viewStateShareKey"
"""Of MLflow's addresses."""

AUTOFLUSH: Final = "(raised as a result of Query-invoked autoflush"

MlflowError = (MlflowException, RequestException, SQLAlchemyError)
"""What a call of MLflow raises if it is not taken."""


def tracking_uri(config: RunConfig) -> str:
    """Return the address of MLflow: the configured one, or the SQLite file in ``runs_dir``."""
    if config.tracking.uri is not None:
        return config.tracking.uri
    runs_dir = Path(config.tracking.runs_dir).resolve()
    runs_dir.mkdir(parents=True, exist_ok=True)
    return f"{SQLITE}{runs_dir / DATABASE_OF_RUNS}"


@contextmanager
def alone_in(uri: str) -> Iterator[None]:
    """Run the body while no other process does so with the same file of MLflow's.

    Whoever opens a file first makes its tables, which two at once cannot. Servers see to it
    themselves.

    Raises:
        UserError: the file's folder cannot be made, or opened.
    """
    database = database_in(uri)
    if database is None:
        yield
        return
    try:
        database.parent.mkdir(parents=True, exist_ok=True)
        folder = os.open(database.parent, os.O_RDONLY)
    except OSError as error:
        raise UserError(
            f"tracking: MLflow's file {database} cannot be made: {error.strerror}; use another "
            "address"
        ) from error
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)  # closing it ends this
        yield
    finally:
        os.close(folder)


def is_own(run_dir: Path, uri: str) -> bool:
    """Say whether an address is the environment's, or that of the file beside a run's folder."""
    return uri in (mlflow_of_environment(), file_beside(run_dir))


def file_beside(run_dir: Path) -> str:
    """Return the address of the SQLite file beside a run's folder."""
    return f"{SQLITE}{run_dir.resolve().parent / DATABASE_OF_RUNS}"


def experiment_of(client: MlflowClient, uri: str, config: RunConfig) -> str:
    """Return the id of the configured experiment, which is made if it is not there."""
    experiment = client.get_experiment_by_name(config.tracking.experiment)
    if experiment is not None:
        return str(experiment.experiment_id)
    artifacts = Path(config.tracking.runs_dir).resolve() / "mlartifacts"
    # A server knows where its artifacts go; a file does not.
    location = artifacts.as_uri() if uri.startswith(SQLITE) else None
    # Opens MLflow's pages for trained models, not those for prompts and agents.
    tags = {"mlflow.experimentKind": "custom_model_development"}
    return str(client.create_experiment(config.tracking.experiment, location, tags))


def page_of(uri: str, experiment_id: str) -> str:
    """Return where an experiment's runs are shown; of a file, after the command that serves it."""
    place = f"#/experiments/{experiment_id}/runs?{KEY_OF_VIEW}={KEY}"
    if uri.startswith("http"):
        return f"{uri.rstrip('/')}/{place}"
    # By itself it answers pages of any name that begins as a private address does.
    server = f"mlflow ui --allowed-hosts 127.0.0.1:5000 --backend-store-uri {quote(uri)}"
    return f"{server}, then http://127.0.0.1:5000/{place}"


def share_view(client: MlflowClient, experiment_id: str) -> None:
    """Have the experiment hold the view that the address names."""
    state = view_state()
    if client.get_experiment(experiment_id).tags.get(VIEW_TAG) != state:
        client.set_experiment_tag(experiment_id, VIEW_TAG, state)


def is_refusal(error: Exception) -> bool:
    """Return whether to say the same again would be in vain; else MLflow may take it later."""
    # What was to be sent is gone, is not in the run's folder, or is damaged.
    if isinstance(error, FileNotFoundError | UserError | KeyError | AttributeError | TypeError):
        return True
    return isinstance(error, MlflowException) and error.get_http_status_code() == 400


def first_line(error: Exception) -> str:
    """Return what a person needs of an error, without what is secret in addresses.

    SQLAlchemy begins with when it wrote, where that was not asked for, as on a full disk.
    """
    lines = [line for line in str(error).strip().splitlines() if AUTOFLUSH not in line]
    return redacted(lines[0] if lines else "") or type(error).__name__
