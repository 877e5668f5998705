"""Send what a run's folder holds and MLflow has not taken: after a crash, or a server's absence."""

from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from time import time, time_ns

from mlflow import MlflowClient

from digen_core.checkpoints.run_state import LOCK_OF_RUN
from digen_core.config.load import config_of_run
from digen_core.errors import UserError
from digen_core.inputs.addresses import redacted
from digen_core.transport.entries import FOLDER
from digen_core.transport.files import inside, try_lock
from tasks.tracking.also.places import check_places
from tasks.tracking.also.teller import Teller
from tasks.tracking.delivery import Delivery
from tasks.tracking.opening import original_of
from tasks.tracking.sender import Sender
from tasks.tracking.server import DATABASE_OF_RUNS, MlflowError, is_own
from tasks.tracking.spool import RunOfSpool, Spool


@dataclass(frozen=True, slots=True)
class Sent:
    """What became of a spool."""

    name: str  # of the run
    uri: str  # of MLflow
    num_sent: int
    num_left: int
    is_busy: bool  # a process of the run is alive, and sends itself
    also: tuple[str, ...] = ()  # places beside MLflow that have all
    not_yet: tuple[str, ...] = ()  # and those that have not


def send_rest(run_dir: Path, uri: str | None = None) -> Sent:
    """Send what is left in a run's folder; a run whose process is gone is reported as killed.

    The folder may be somebody else's: no file goes out that is not in it, and it cannot name a
    server that then gets this user's password.

    Args:
        run_dir: the run's folder.
        uri: of MLflow; None: that in the folder, if it is this user's own.

    Raises:
        UserError: the folder holds nothing for MLflow, leads out of itself, or names an MLflow
            that is neither the environment's nor the file beside it, or is a copy; or nobody is
            logged in to a place that is told, too.
    """
    spool = _spool_of(run_dir)
    run = spool.run.model_copy(update={"uri": uri or _own_uri(run_dir, spool.run.uri)})
    client = MlflowClient(run.uri)
    _require_original(client, run, run_dir)
    before = spool.num_unsent + len(spool.aside())
    # Nobody is to resume the run meanwhile: it would be told of as killed while it goes on.
    idle = try_lock(inside(run_dir, LOCK_OF_RUN), shared=True)
    with spool.sending() as may_send, idle as is_idle:
        if not (may_send and is_idle):
            return Sent(run.name, run.uri, 0, before, is_busy=True)
        if not _has_ended(spool):
            end = {"status": "KILLED", "message": "its process ended without a word"}
            spool.append(f"status {time_ns()}", "status", time=int(time() * 1000), **end)
            before += 1
    Sender(spool, Delivery(client, spool)).close()
    left = spool.num_unsent + len(spool.aside())
    also, not_yet = _tell_others(spool)
    return Sent(run.name, run.uri, before - left, left, False, also, not_yet)


def _spool_of(run_dir: Path) -> Spool:
    """Return the spool of a run's folder, which leads nowhere else.

    Raises:
        UserError: the folder holds nothing for MLflow, or leads out of itself.
    """
    inside(run_dir, FOLDER)
    spool = Spool.open(run_dir)
    if spool is None and (run_dir / FOLDER).is_dir():
        raise UserError(
            f"{run_dir / FOLDER} does not say for which run of MLflow it is; resuming the run "
            f"mends that: digen train --resume {quote(str(run_dir))}"
        )
    if spool is None:
        raise UserError(f"{run_dir} holds nothing for MLflow; give the folder of a run")
    for entry in spool.read():
        if entry["kind"] in ("file", "model"):
            inside(run_dir, str(entry.get("path", "")))
    return spool


def _require_original(client: MlflowClient, run: RunOfSpool, run_dir: Path) -> None:
    """Check that a folder is no copy, which knows nothing of how the run that it names went on.

    Raises:
        UserError: it is, and the other one is there still.
    """
    try:
        found = client.get_run(run.mlflow_run_id)
    except MlflowError:  # then it takes nothing either
        return
    if (original := original_of(found, run_dir)) is not None:
        raise UserError(
            f"{run_dir} is a copy of {original}, whose run of MLflow it names; give that folder, "
            "or resume or evaluate the copy, which begins a run of its own"
        )


def _tell_others(spool: Spool) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Tell the places beside MLflow what they lack, and return which have all and which have not.

    Raises:
        UserError: nobody is logged in to one.
    """
    try:
        config = config_of_run(spool.run_dir)
    except UserError:  # MLflow has no need of it
        return (), ()
    check_places(config)
    tellers = {name: Teller(name, config, spool) for name in config.tracking.also}
    for teller in tellers.values():
        teller.end(_last_status(spool))
    has_all = {name: teller.join() for name, teller in tellers.items()}
    told = tuple(name for name, is_all in has_all.items() if is_all)
    return told, tuple(name for name in has_all if name not in told)


def _own_uri(run_dir: Path, uri: str) -> str:
    """Return the address in a run's folder.

    Raises:
        UserError: this user did not name it.
    """
    if not is_own(run_dir, uri):
        raise UserError(
            f"{run_dir} was logged to MLflow at {redacted(uri)}, which is neither that of "
            f"MLFLOW_TRACKING_URI nor {DATABASE_OF_RUNS} beside the folder; if it is meant, say "
            f"so: --mlflow-uri {redacted(uri)}"
        )
    return uri


def _has_ended(spool: Spool) -> bool:
    return _last_status(spool) not in ("", "RUNNING")


def _last_status(spool: Spool) -> str:
    words = [str(entry.get("status")) for entry in spool.read() if entry["kind"] == "status"]
    return words[-1] if words else ""
