"""Reach MLflow: a server, or the SQLite file of the runs' folder."""

import logging
from pathlib import Path

from mlflow import MlflowClient
from mlflow.exceptions import MlflowException
from requests import RequestException

from digen_core.config import RunConfig

# Its lines tell of tables that it makes, and of versions of torch that it writes down otherwise.
logging.getLogger("mlflow").setLevel(logging.ERROR)

MlflowError = (MlflowException, RequestException)
"""What a call of MLflow raises if it is not taken."""


def tracking_uri(config: RunConfig) -> str:
    """Return the address of MLflow: the configured one, or the SQLite file in ``runs_dir``."""
    if config.tracking.uri is not None:
        return config.tracking.uri
    runs_dir = Path(config.tracking.runs_dir).resolve()
    runs_dir.mkdir(parents=True, exist_ok=True)
    return f"sqlite:///{runs_dir / 'mlflow.db'}"


def experiment_of(client: MlflowClient, uri: str, config: RunConfig) -> str:
    """Return the id of the configured experiment, which is made if it is not there."""
    experiment = client.get_experiment_by_name(config.tracking.experiment)
    if experiment is not None:
        return str(experiment.experiment_id)
    artifacts = Path(config.tracking.runs_dir).resolve() / "mlartifacts"
    # A server knows where its artifacts go; a file does not.
    location = artifacts.as_uri() if uri.startswith("sqlite:") else None
    # Opens MLflow's pages for trained models, not those for prompts and agents.
    tags = {"mlflow.experimentKind": "custom_model_development"}
    return str(client.create_experiment(config.tracking.experiment, location, tags))


def page_of(uri: str, experiment_id: str, mlflow_run_id: str) -> str:
    """Return how to look at a run: its address, or the command that serves it."""
    if uri.startswith("http"):
        return f"{uri.rstrip('/')}/#/experiments/{experiment_id}/runs/{mlflow_run_id}"
    return f"mlflow ui --backend-store-uri {uri}"


def is_refusal(error: Exception) -> bool:
    """Return whether to say the same again would be in vain; else MLflow may take it later."""
    if isinstance(error, (FileNotFoundError, KeyError, AttributeError, TypeError)):
        return True  # what was to be sent is gone, or damaged
    return isinstance(error, MlflowException) and error.get_http_status_code() == 400


def first_line(error: Exception) -> str:
    """Return what a person needs of an error."""
    return str(error).strip().partition("\n")[0] or type(error).__name__
