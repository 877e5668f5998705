"""Weights & Biases: a run of its project, whose id is that of the run in MLflow.

Where that is, as whom and whether online is said by the library's own environment (WANDB_BASE_URL,
WANDB_API_KEY, WANDB_MODE, WANDB_ENTITY, WANDB_PROJECT). The number of an entry is the run's step
there: what W&B says that it has is not told again. Offline nobody can be asked, and a process that
is killed takes some of its file with it: so that is made anew when a run is resumed.
"""

import os
import re
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from digen_core.config.run import RunConfig
from digen_core.errors import UserError
from tasks.tracking.also.places import Point
from tasks.tracking.spool import Spool

os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # read when it is imported

import wandb

FOLDER: Final = "wandb"
AXES: Final = ("iteration", "policy_version")
_NOT_IN_NAMES: Final = re.compile(r"[/\\#?%:]")  # of projects


def check_login() -> None:
    """Check that somebody is logged in, unless nothing is sent; nobody is asked.

    Raises:
        UserError: nobody is.
    """
    if _mode() in ("online", "shared") and not wandb.login(prompt=False, verify=False):
        raise UserError(
            "tracking.also names wandb, but nobody is logged in: call 'wandb login', or set "
            "WANDB_API_KEY, or WANDB_MODE=offline"
        )


def _mode() -> str:
    """Return what the environment, or the library's own settings, say."""
    return str(wandb.setup(settings=wandb.Settings(silent=True)).settings.mode)


class WandbRun:
    """A run of W&B."""

    def __init__(self, config: RunConfig, spool: Spool) -> None:
        """Begin the run, or continue it."""
        self._run = _opened(config, spool)
        self._known = set(AXES)
        for axis in AXES:
            self._run.define_metric(axis, hidden=True)
        self.first = self._run.step  # of a run that is continued, online

    def log(self, point: Point, values: Mapping[str, float]) -> None:
        """Take metrics."""
        for name in values.keys() - self._known:
            self._run.define_metric(name, step_metric=point.axis)
            self._known.add(name)
        self._log(point, dict(values))

    def show(self, point: Point, name: str, picture: Path) -> None:
        """Take an image grid."""
        self._log(point, {f"samples/{name}": wandb.Image(str(picture), caption=name)})

    def flush(self, number: int) -> None:
        """Do nothing: the library's own process writes to disk, and sends."""

    def close(self, status: str) -> None:
        """Have the library send the rest, which may take a while."""
        self._run.finish(exit_code=0 if status == "FINISHED" else 1)

    def _log(self, point: Point, values: Mapping[str, object]) -> None:
        own = {point.axis: point.step, "_timestamp": point.seconds}
        self._run.log({**values, **own}, step=point.number, commit=True)


def _opened(config: RunConfig, spool: Spool) -> Any:
    """Begin the run, or continue it; of an attempt that fails nothing stays on disk.

    Raises:
        UserError: the folder for it leads elsewhere.
    """
    run_id, folder = spool.run.mlflow_run_id, spool.run_dir / FOLDER
    if folder.is_symlink():
        raise UserError(f"{folder} is a link, which is not written through")
    if _mode() == "offline":  # what was made before is made anew
        _remove(folder.glob(f"offline-run-*-{run_id}"))
    project = os.environ.get("WANDB_PROJECT") or config.tracking.experiment
    before = set(folder.glob(f"*run-*-{run_id}"))
    try:
        return wandb.init(
            id=run_id,
            name=spool.run.name,
            project=_NOT_IN_NAMES.sub("-", project),
            dir=str(spool.run_dir),
            config=config.model_dump(mode="json"),
            allow_val_change=True,
            resume="allow",
            reinit="create_new",  # another run of this process has its own
            settings=_settings(),
        )
    except BaseException:
        _remove(set(folder.glob(f"*run-*-{run_id}")) - before)
        raise


def _remove(folders: Iterable[Path]) -> None:
    for folder in folders:
        if not folder.is_symlink():
            shutil.rmtree(folder, ignore_errors=True)


def _settings() -> "wandb.Settings":
    """Say that nothing goes but metrics, pictures and the config: no console, code or machine."""
    return wandb.Settings(
        silent=True,
        console="off",
        disable_code=True,
        disable_git=True,
        disable_job_creation=True,
        x_disable_meta=True,
        x_disable_stats=True,
        init_timeout=30,
        finish_timeout=60,
        finish_timeout_raises=True,
    )
