"""MLflow, and the only place that imports it: what a run logs, and under which names.

Metrics keep the names of :class:`IterationRecord`; their step is the policy version. Artifacts:
    config.json              the whole config
    grids/<name>.png         images of the evaluation prompts
    timelines/<name>.png     what the devices did in some of the iterations
    evaluation/<tag>.json    evaluation reports

Logging returns at once: each run has one thread that does its calls in order. (MLflow's own
asynchronous queue is shared by all runs of a process, so that one run's flush breaks the others.)
A call that MLflow does not take is warned about once, and the run goes on without it.
"""

import io
import json
import logging
import math
import os
import subprocess
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
from PIL import Image
from requests import RequestException

from digen_core.config import ConfigError, RunConfig
from digen_core.records import EvaluationReport, IterationRecord
from tasks.display import draw_grid

os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
os.environ.setdefault("DO_NOT_TRACK", "true")
# A server that restarts is waited for; one that is gone for good does not hold up the run's end.
os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "3")
os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "30")

from mlflow import MlflowClient
from mlflow.entities import Metric, Param
from mlflow.exceptions import MlflowException

logger = logging.getLogger(__name__)
logging.getLogger("mlflow").setLevel(logging.WARNING)  # its INFO lines tell of table creation

MAX_PARAMS_PER_CALL: Final = 100
"""MLflow's limit."""

_ONE_A_STEP: Final = ("time/iteration_seconds", "evaluation/reward")
"""Of the metrics of an iteration, and of an evaluation, one that all have."""

FLUSH_SECONDS: Final = 60.0
"""How long the end of a run waits for MLflow."""


class Tracker:
    """One run in MLflow. Safe to use from several threads; runs in one process do not mix."""

    def __init__(self, client: MlflowClient, uri: str, experiment_id: str, run_id: str) -> None:
        self.uri = uri
        self.experiment_id = experiment_id
        self.mlflow_run_id = run_id
        self._client = client
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="mlflow")
        self._pending: deque[Future[None]] = deque()
        self._warned = False
        self._logged: dict[str, set[int]] = {}  # by name, steps from before a run was resumed

    @classmethod
    def start(
        cls, config: RunConfig, run_id: str, run_dir: Path, flow_run_id: str | None = None
    ) -> "Tracker":
        """Begin a run: its name, config and tags are written before this returns.

        Args:
            config: every key of it becomes a parameter.
            run_id: name of the run in MLflow.
            run_dir: the run's folder, kept as a tag.
            flow_run_id: of Prefect, kept as a tag.

        Raises:
            ConfigError: MLflow cannot be reached or does not take the run.
        """
        uri = _tracking_uri(config)
        tags = _tags(run_dir, flow_run_id)
        params = [Param(key, value) for key, value in flatten(config.model_dump()).items()]
        try:
            client = MlflowClient(uri)
            experiment_id = _experiment_id(client, uri, config)
            info = client.create_run(experiment_id, run_name=run_id, tags=tags).info
            for start in range(0, len(params), MAX_PARAMS_PER_CALL):
                client.log_batch(info.run_id, params=params[start : start + MAX_PARAMS_PER_CALL])
            client.log_text(info.run_id, config.model_dump_json(indent=2), "config.json")
        except (MlflowException, RequestException) as error:
            raise ConfigError(
                f"tracking: cannot start a run in MLflow at {uri}: {_first_line(error)}"
            ) from error
        return cls(client, uri, experiment_id, info.run_id)

    @classmethod
    def resume(
        cls, config: RunConfig, mlflow_run_id: str, flow_run_id: str | None = None
    ) -> "Tracker":
        """Go on with a run; what it has already of a step is not logged again.

        Args:
            config: of the run as it goes on; it replaces the artifact, parameters stay as they are.
            mlflow_run_id: of the run.
            flow_run_id: of Prefect, kept as a tag.

        Raises:
            ConfigError: MLflow cannot be reached or has no such run.
        """
        uri = _tracking_uri(config)
        try:
            client = MlflowClient(uri)
            run = client.get_run(mlflow_run_id)
            client.update_run(mlflow_run_id, status="RUNNING")
            if flow_run_id is not None:
                client.set_tag(mlflow_run_id, "prefect.flow_run_id", flow_run_id)
            client.log_text(mlflow_run_id, config.model_dump_json(indent=2), "config.json")
            tracker = cls(client, uri, run.info.experiment_id, mlflow_run_id)
            for name in _ONE_A_STEP:
                history = client.get_metric_history(mlflow_run_id, name)
                tracker._logged[name] = {metric.step for metric in history}
        except (MlflowException, RequestException) as error:
            raise ConfigError(
                f"tracking: cannot go on with run {mlflow_run_id} in MLflow at {uri}: "
                f"{_first_line(error)}"
            ) from error
        return tracker

    def log_iteration(self, record: IterationRecord) -> None:
        """Log the metrics of an iteration, and its timeline; MLflow's step counts from 1.

        Raises:
            ValueError: a metric is NaN or infinite.
        """
        step = record.iteration + 1
        self._log_metrics(f"metrics of iteration {step}", record.metrics, step)
        if record.timeline is not None:
            name = f"timelines/iteration-{record.iteration:04d}.png"
            self._submit(name, self._log_picture, record.timeline, name)

    def log_evaluation(self, tag: str, report: EvaluationReport) -> None:
        """Log the rewards of an evaluation as ``evaluation/<component>``, and the report as JSON.

        Raises:
            ValueError: a reward is NaN or infinite.
        """
        metrics = {f"evaluation/{name}": value for name, value in report.rewards.items()}
        self._log_metrics(f"evaluation {tag}", metrics, report.version)
        self._submit(
            f"evaluation {tag}",
            self._client.log_text,
            self.mlflow_run_id,
            report.model_dump_json(indent=2),
            f"evaluation/{tag}.json",
        )

    def log_images(self, name: str, prompts: Sequence[str], images: np.ndarray, step: int) -> None:
        """Log a labelled grid of images as ``grids/<name>.png``.

        Args:
            name: name of the picture, such as "before" or "version_0004".
            prompts: label of each row.
            images: [n, k, H, W, 3] uint8, k images of each of the n prompts.
            step: policy version that made them.
        """
        grid = draw_grid(f"policy version {step}", prompts, images)
        self._submit(
            f"grid {name}",
            self._client.log_image,
            self.mlflow_run_id,
            grid,
            f"grids/{name}.png",
        )

    def log_folder(self, path: Path | str, artifact_path: str) -> None:
        """Log all files of a folder. They are read later: leave them in place until ``finish``.

        Raises:
            NotADirectoryError: there is no such folder.
        """
        if not Path(path).is_dir():
            raise NotADirectoryError(f"{path} is not a folder; nothing to log.")
        self._submit(
            f"folder {artifact_path}",
            self._client.log_artifacts,
            self.mlflow_run_id,
            str(path),
            artifact_path,
        )

    def finish(self, status: Literal["FINISHED", "FAILED", "KILLED"], message: str = "") -> None:
        """Write what is pending and end the run; afterwards nothing can be logged.

        Args:
            status: MLflow's word for how it ended.
            message: shown as the run's description.
        """
        run_id = self.mlflow_run_id
        if message:
            self._submit(
                "the message", self._client.set_tag, run_id, "mlflow.note.content", message
            )
        self._submit("the run's end", self._client.set_terminated, run_id, status)
        done, waiting = wait(self._pending, timeout=FLUSH_SECONDS)
        self._executor.shutdown(wait=False, cancel_futures=True)
        if waiting:
            logger.warning(
                "MLflow at %s is behind; %d calls of run %s were given up.",
                self.uri,
                len(waiting),
                run_id,
            )
        for future in done:
            future.result()

    def describe(self) -> str:
        """Return how to look at the run: its address, or the command that serves it."""
        page = f"#/experiments/{self.experiment_id}/runs/{self.mlflow_run_id}"
        if self.uri.startswith("http"):
            return f"{self.uri.rstrip('/')}/{page}"
        return f"mlflow ui --backend-store-uri {self.uri}"

    def _log_metrics(self, what: str, values: dict[str, float], step: int) -> None:
        for name, value in values.items():
            if not math.isfinite(value):
                raise ValueError(f"metric {name} is {value} at step {step}.")
        if any(step in self._logged.get(name, ()) for name in values):
            return
        now = int(time.time() * 1000)
        metrics = [Metric(name, value, now, step) for name, value in values.items()]
        self._submit(what, self._client.log_batch, self.mlflow_run_id, metrics)

    def _log_picture(self, picture: Future[bytes], path: str) -> None:
        if png := picture.result():
            self._client.log_image(self.mlflow_run_id, Image.open(io.BytesIO(png)), path)

    def _submit(self, what: str, call: Callable[..., Any], *args: Any) -> None:
        while self._pending and self._pending[0].done():
            self._pending.popleft().result()  # raises what is not MLflow's fault
        self._pending.append(self._executor.submit(self._attempt, what, call, *args))

    def _attempt(self, what: str, call: Callable[..., Any], *args: Any) -> None:
        try:
            call(*args)
        except (MlflowException, RequestException) as error:
            if not self._warned:
                logger.warning(
                    "MLflow at %s did not take %s; the run goes on and says this once: %s",
                    self.uri,
                    what,
                    _first_line(error),
                )
            self._warned = True


def flatten(tree: dict[str, Any], prefix: str = "") -> dict[str, str]:
    """Return the leaves of a nested dict as dotted keys and texts (JSON, but strings as is)."""
    leaves: dict[str, str] = {}
    for key, value in tree.items():
        if isinstance(value, dict):
            leaves.update(flatten(value, f"{prefix}{key}."))
        else:
            leaves[f"{prefix}{key}"] = value if isinstance(value, str) else json.dumps(value)
    return leaves


def _tracking_uri(config: RunConfig) -> str:
    configured = config.tracking.mlflow_uri or os.environ.get("MLFLOW_TRACKING_URI")
    if configured:
        return configured
    runs_dir = Path(config.tracking.runs_dir).resolve()
    runs_dir.mkdir(parents=True, exist_ok=True)
    return f"sqlite:///{runs_dir / 'mlflow.db'}"


def _experiment_id(client: MlflowClient, uri: str, config: RunConfig) -> str:
    experiment = client.get_experiment_by_name(config.tracking.experiment)
    if experiment is not None:
        return str(experiment.experiment_id)
    artifacts = Path(config.tracking.runs_dir).resolve() / "mlartifacts"
    # A server knows where its artifacts go; a file does not.
    location = artifacts.as_uri() if uri.startswith("sqlite:") else None
    # Opens MLflow's pages for trained models, not those for prompts and agents.
    tags = {"mlflow.experimentKind": "custom_model_development"}
    return str(client.create_experiment(config.tracking.experiment, location, tags))


def _tags(run_dir: Path, flow_run_id: str | None) -> dict[str, str]:
    tags = {"digen.version": _version(), "digen.run_dir": str(Path(run_dir).resolve())}
    revision = _git_revision()
    if revision is not None:
        tags["mlflow.source.git.commit"] = revision
    if flow_run_id is not None:
        tags["prefect.flow_run_id"] = flow_run_id
    return tags


def _version() -> str:
    try:
        return version("digen")
    except PackageNotFoundError:  # run from a source tree
        return "not installed"


def _git_revision() -> str | None:
    """Return the commit of this source tree; None in an installation or without git."""
    # The second name fails where the surrounding repository is not digen's own.
    command = ["git", "rev-parse", "HEAD", f"HEAD:./{Path(__file__).name}"]
    try:
        run = subprocess.run(
            command, cwd=Path(__file__).parent, capture_output=True, text=True, check=False
        )
    except FileNotFoundError:
        return None
    return run.stdout.split()[0] if run.returncode == 0 else None


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
