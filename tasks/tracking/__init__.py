"""MLflow, and the only place that imports it: docs/tracking.md says what is where."""

import os

import digen_core  # noqa: F401, first: it prepares the environment

# Before MLflow is imported.
# Whoever calls decides what happens when the server is away: a run tries again later.
os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "30")
os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")  # at the end of each run
