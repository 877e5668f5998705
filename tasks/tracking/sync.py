"""Send what a run's folder holds and MLflow has not taken: after a crash, or a server's absence."""

from dataclasses import dataclass
from pathlib import Path
from time import time, time_ns

from mlflow import MlflowClient

from digen_core.config import ConfigError
from tasks.tracking.delivery import Delivery
from tasks.tracking.sender import Sender
from tasks.tracking.spool import FOLDER, Spool


@dataclass(frozen=True, slots=True)
class Sent:
    """What became of a spool."""

    name: str  # of the run
    uri: str  # of MLflow
    num_sent: int
    num_left: int
    is_busy: bool  # a process of the run is alive, and sends itself


def send_rest(run_dir: Path) -> Sent:
    """Send what is left in a run's folder; a run whose process is gone is told of as killed.

    Raises:
        ConfigError: the folder holds nothing for MLflow.
    """
    spool = Spool.open(run_dir)
    if spool is None and (run_dir / FOLDER).is_dir():
        raise ConfigError(
            f"{run_dir / FOLDER} does not say for which run of MLflow it is; resuming the run "
            f"mends that: digen train --resume {run_dir}"
        )
    if spool is None:
        raise ConfigError(f"{run_dir} holds nothing for MLflow; give the folder of a run")
    before = spool.num_unsent + len(spool.aside())
    with spool.sending() as may_send:
        if not may_send:
            return Sent(spool.run.name, spool.run.uri, 0, before, is_busy=True)
    if not _has_ended(spool):
        end = {"status": "KILLED", "message": "its process ended without a word"}
        spool.append(f"status {time_ns()}", "status", time=int(time() * 1000), **end)
        before += 1
    Sender(spool, Delivery(MlflowClient(spool.run.uri), spool.run, run_dir)).close()
    left = spool.num_unsent + len(spool.aside())
    return Sent(spool.run.name, spool.run.uri, before - left, left, is_busy=False)


def _has_ended(spool: Spool) -> bool:
    words = [entry["status"] for entry in spool.read() if entry["kind"] == "status"]
    return bool(words) and words[-1] != "RUNNING"
