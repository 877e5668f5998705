"""The tracker of a run in MLflow: docs/tracking.md says what is where.

Logging writes to the run's folder (`spool`), and a thread sends it to MLflow (`sender`): a server
that is down, or goes down, neither stops a run nor loses what it logged.
"""

import logging
import math
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, wait
from functools import partial
from itertools import count
from pathlib import Path
from shlex import quote
from typing import Any, Final, Literal, Self

import numpy as np
from mlflow import MlflowClient

from digen_core.checkpoints.manifest import EVALUATIONS_OF_RUN
from digen_core.config.load import CONFIG_OF_RUN, config_of_run
from digen_core.config.run import RunConfig
from digen_core.inputs.addresses import redacted
from digen_core.records import EvaluationReport, IterationRecord
from digen_core.transport.files import make_folder, replace_bytes, replace_text
from digen_core.transport.profiles import folder_of
from tasks.tracking.also.teller import Teller
from tasks.tracking.delivery import Delivery
from tasks.tracking.environment import ENVIRONMENT_OF_RUN, environment
from tasks.tracking.model import package
from tasks.tracking.opening import begin, go_on
from tasks.tracking.params import metrics_of_evaluation, params_of_evaluation, tags_of_changes
from tasks.tracking.sender import Sender
from tasks.tracking.server import is_own, page_of
from tasks.tracking.spool import Spool, evaluation_key, iteration_key
from tasks.tracking.versions import VERSIONS_OF_RUN, note_versions
from tasks.views.markdown import inline
from tasks.views.pictures import animation, draw_grid, png

logger = logging.getLogger(__name__)

PICTURE_SECONDS: Final = 60.0
"""How long the end of a run waits for pictures that are being drawn."""


class Tracker:
    """One run in MLflow. Safe to use from several threads; runs in one process do not mix."""

    def __init__(self, config: RunConfig, client: MlflowClient, spool: Spool) -> None:
        """Log to a spool that is sent beside the run. Use ``start``, ``resume`` or ``reopen``."""
        self.uri = spool.run.uri
        self.experiment_id = spool.run.experiment_id
        self.mlflow_run_id = spool.run.mlflow_run_id
        self._config = config
        self._spool = spool
        self._in_training = True
        self._told: dict[str, str] = {}  # evaluation -> its name in MLflow
        self._pictures: list[Future[None]] = []  # of timelines: each is done when it is logged
        self._tellers: list[Teller] = []
        self._sender = Sender(spool, Delivery(client, spool))

    @classmethod
    def start(
        cls, config: RunConfig, run_id: str, run_dir: Path, flow_run_id: str | None = None
    ) -> Self:
        """Begin a run: its name, config and tags are in MLflow before this returns.

        Args:
            config: every key of it becomes a parameter.
            run_id: name of the run in MLflow.
            run_dir: the run's folder, with its config; it gets all that is logged.
            flow_run_id: of Prefect, kept as a tag.

        Raises:
            UserError: MLflow cannot be reached or does not take the run.
        """
        tracker = cls(config, *begin(config, run_id, run_dir, flow_run_id))
        tracker._append(CONFIG_OF_RUN, "file", path=CONFIG_OF_RUN, folder="")
        tracker._log_environment()
        tracker._tell_others()
        return tracker

    @classmethod
    def resume(
        cls,
        config: RunConfig,
        run_dir: Path,
        mlflow_run_id: str | None = None,
        flow_run_id: str | None = None,
    ) -> Self:
        """Resume a run that was interrupted: iterations that it logged are not logged again.

        Args:
            config: of the run as it continues; MLflow takes no other value of a parameter, so what
                differs from the folder's is tags.
            run_dir: the run's folder, with its config.
            mlflow_run_id: of the run; None: the folder says it.
            flow_run_id: of Prefect, kept as a tag.

        Raises:
            UserError: MLflow cannot be reached, or the folder names no run or has no config.
        """
        tracker = cls(config, *go_on(config, run_dir, mlflow_run_id))
        tags = tags_of_changes(config_of_run(run_dir), config)
        tracker._append_status("RUNNING")
        replace_text(run_dir / CONFIG_OF_RUN, config.model_dump_json(indent=2))
        tracker._append(f"{CONFIG_OF_RUN} {time.time_ns()}", "file", path=CONFIG_OF_RUN, folder="")
        if flow_run_id is not None:
            tags["prefect.flow_run_id"] = flow_run_id
        if tags:
            tracker._append(f"tags {time.time_ns()}", "tags", tags=tags)
        if ENVIRONMENT_OF_RUN not in tracker._spool:  # it ended while it began
            tracker._log_environment()
        tracker._tell_others()
        return tracker

    @classmethod
    def reopen(cls, config: RunConfig, run_dir: Path, flow_run_id: str | None = None) -> Self:
        """Log evaluations of a run that has ended: each is a nested run, the run is as it was.

        Args:
            config: of the run, with the settings of the evaluation.
            run_dir: the run's folder.
            flow_run_id: of Prefect, kept as a tag if the folder's run has none in MLflow yet.

        Raises:
            UserError: MLflow cannot be reached, or the folder names no run.
        """
        if Spool.open(run_dir) is None:
            tracker = cls.start(config, run_dir.name, run_dir, flow_run_id)
            tracker._append_status("FINISHED")
        else:
            tracker = cls(config, *go_on(config, run_dir))
        tracker._in_training = False
        return tracker

    def log_iteration(self, record: IterationRecord) -> None:
        """Log the metrics of an iteration, and its timeline; MLflow's step counts from 1.

        Of one that is done again MLflow keeps what it has; the run's folder gets its new timeline.

        Raises:
            ValueError: a metric is NaN or infinite.
        """
        step = record.iteration + 1
        _check(record.metrics, step)
        now, key = _milliseconds(), iteration_key(step)
        self._append(key, "metrics", metrics=record.metrics, step=step, time=now)
        if record.timeline is not None:
            logged: Future[None] = Future()
            left = [other for other in self._pictures if not other.done()]
            self._pictures = [*left, logged]  # a run may have many thousands
            path = f"timelines/iteration-{step:04d}.png"
            record.timeline.add_done_callback(partial(self._log_picture, path, logged))

    def log_profiles(self, iteration: int) -> None:
        """Log what profiles the devices kept of an iteration.

        Args:
            iteration: its index.
        """
        run_dir = self._spool.run_dir
        for path in sorted(folder_of(run_dir, iteration).glob("[!.]*")):
            own = path.relative_to(run_dir).as_posix()
            self._append(own, "file", path=own, folder=own.rpartition("/")[0])

    def log_versions(self, hashes: Mapping[int, str]) -> None:
        """Note policy versions in ``versions.jsonl``, an artifact when the run has ended.

        Args:
            hashes: version -> hash of its content; each is made from the version before it.
        """
        note_versions(self._spool.run_dir, hashes)

    def log_evaluation(self, tag: str, report: EvaluationReport) -> str:
        """Log an evaluation as a nested run; one in training is also a point of the run's curves.

        Args:
            tag: its name in the run: "before", "iteration-0004", "after".
            report: what it found.

        A run that has ended and is resumed with more iterations ends again: the second "after" is
        another nested run, called by its version.

        Returns:
            Its name in the run: with a number, if a run that has ended is evaluated again.

        Raises:
            ValueError: a reward is NaN or infinite.
        """
        metrics = metrics_of_evaluation(report)
        _check(metrics, report.version)
        if self._in_training:
            name, told = tag, self._name_in_mlflow(tag, report.version)
            self._append_evaluation(told, metrics, report)
        else:
            numbered = (f"{tag}-{number}" for number in count(1))
            name = told = next(n for n in numbered if self._append_evaluation(n, metrics, report))
        self._told[name] = told
        path = f"{EVALUATIONS_OF_RUN}/{name}.json"
        self._log_file(path, report.model_dump_json(indent=2).encode(), evaluation=told)
        return name

    def log_images(self, name: str, prompts: Sequence[str], images: np.ndarray, step: int) -> None:
        """Log a labelled grid of an evaluation's images as ``grids/<name>.png``.

        Of videos the grid shows the frames in the middle, and ``videos/<name>.gif`` all of them.

        Args:
            name: of the evaluation.
            prompts: label of each row.
            images: uint8 [n, k, H, W, 3], k images of each of the n prompts, or videos
                [n, k, F, H, W, 3].
            step: policy version that made them.
        """
        title, told = f"policy version {step}", self._told.get(name, name)
        if images.ndim == 6:
            frames = [draw_grid(title, prompts, images[:, :, i]) for i in range(images.shape[2])]
            self._log_file(f"videos/{name}.gif", animation(frames), evaluation=told)
            images = images[:, :, images.shape[2] // 2]
        grid = draw_grid(title, prompts, images)
        self._log_file(f"grids/{name}.png", png(grid), evaluation=told)

    def log_model(self, weights: Path, version: int, weights_hash: str) -> None:
        """Log a version in the form that MLflow loads, and add it to the model registry.

        Args:
            weights: folder of adapters or a transformer, as diffusers loads it.
            version: of the policy.
            weights_hash: hash of the version's content.
        """
        folder = self._spool.run_dir / "model"
        package(self._config, weights, folder)
        tags = {"digen.policy_version": str(version), "digen.weights_hash": weights_hash}
        kind = "transformer" if self._config.train.lora is None else "lora"
        name = self._config.tracking.registered_model or self._config.name
        self._append(
            f"model {version}",
            "model",
            path=folder.name,
            name=name,
            model_type=f"diffusers-{kind}",
            tags=tags,
            step=version,
        )

    def finish(self, status: Literal["FINISHED", "FAILED", "KILLED"], message: str = "") -> None:
        """Send what is pending and end the run; afterwards nothing can be logged.

        Args:
            status: MLflow's word for how it ended.
            message: shown as the run's description.
        """
        # a run that somebody stopped has few seconds in all
        wait(self._pictures, timeout=0.0 if status == "KILLED" else PICTURE_SECONDS)
        if self._in_training:
            if (self._spool.run_dir / VERSIONS_OF_RUN).exists():
                name = f"{VERSIONS_OF_RUN} {time.time_ns()}"
                self._append(name, "file", path=VERSIONS_OF_RUN, folder="")
            self._append_status(status, message)
        for teller in self._tellers:
            teller.end(status)
        self._sender.close()
        for teller in self._tellers:
            teller.join()
        num_left = self._spool.num_unsent + len(self._spool.aside())
        if num_left:
            uri, run_dir = redacted(self.uri), self._spool.run_dir
            folder = quote(str(run_dir))
            logger.warning(
                "MLflow at %s has not taken %d entries of %s yet; 'digen sync %s' sends them",
                uri,
                num_left,
                self._spool.run.name,
                folder if is_own(run_dir, self.uri) else f"{folder} --mlflow-uri {quote(uri)}",
            )

    def describe(self) -> str:
        """Return where the runs of the experiment are shown, and what serves them."""
        return page_of(redacted(self.uri), self.experiment_id)

    def _tell_others(self) -> None:
        """Tell the other places of the config all that was logged, and what will be."""
        names = self._config.tracking.also
        self._tellers = [Teller(name, self._config, self._spool) for name in names]

    def _log_environment(self) -> None:
        replace_text(self._spool.run_dir / ENVIRONMENT_OF_RUN, environment())
        self._append(ENVIRONMENT_OF_RUN, "file", path=ENVIRONMENT_OF_RUN, folder="")

    def _append(self, key: str, kind: str, **content: Any) -> bool:
        is_new = self._spool.append(key, kind, **content)
        self._sender.wake()
        for teller in self._tellers:
            teller.wake()
        return is_new

    def _append_evaluation(
        self, told: str, metrics: dict[str, float], report: EvaluationReport
    ) -> bool:
        """Log an evaluation by its name in MLflow, and return whether the run had none of it."""
        return self._append(
            evaluation_key(told),
            "evaluation",
            evaluation=told,
            in_training=self._in_training,
            params=params_of_evaluation(self._config, report),
            metrics=metrics,
            step=report.version,
            time=_milliseconds(),
        )

    def _append_status(self, status: str, message: str = "") -> None:
        now, message = _milliseconds(), inline(message) if message else ""  # MLflow shows Markdown
        self._append(f"status {time.time_ns()}", "status", status=status, message=message, time=now)

    def _log_file(self, path: str, content: bytes, **of: Any) -> None:
        """Write a file into the run's folder, and log it."""
        target = self._spool.run_dir / path
        make_folder(target.parent)
        replace_bytes(target, content)
        folder, told = path.rpartition("/")[0], of.get("evaluation", "")
        key = path if told in ("", Path(path).stem) else f"{path} of {told}"
        self._append(key, "file", path=path, folder=folder, in_training=self._in_training, **of)

    def _log_picture(self, path: str, logged: Future[None], picture: Future[bytes]) -> None:
        try:
            if not picture.cancelled() and (content := picture.result()):
                self._log_file(path, content)
        finally:
            logged.set_result(None)

    def _name_in_mlflow(self, name: str, version: int) -> str:
        """Return the name of an evaluation's nested run, whose parameters stay as they are."""
        known = self._spool.step_of(evaluation_key(name))
        return name if known in (None, version) else f"{name}-v{version}"


def _check(metrics: dict[str, float], step: int) -> None:
    for name, value in metrics.items():
        if not math.isfinite(value):
            raise ValueError(f"metric {name} is {value} at step {step}.")


def _milliseconds() -> int:
    return int(time.time() * 1000)
