"""Resume of a run that was interrupted: in its folder, from its last checkpoint.

What the run did after that checkpoint is done again, so it is removed first: no sample is kept
twice. MLflow gets what it lacks of the iterations that stay.
"""

import errno
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Final
from uuid import UUID

from prefect import get_client, runtime
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterState
from prefect.client.schemas.objects import State
from prefect.states import Crashed

from digen_core.checkpoints.manifest import (
    CHECKPOINTS_OF_RUN,
    EVALUATIONS_OF_RUN,
    LINEAGE_OF_RUN,
    DamagedError,
    Lineage,
    checkpoints_in,
    last_checkpoint,
    read_lineage,
    read_manifest,
)
from digen_core.checkpoints.resume import AUTO, Resumption, newest_run, resumption_of
from digen_core.checkpoints.retention import evaluations_of
from digen_core.checkpoints.run_state import LOCK_OF_RUN, trained_elsewhere
from digen_core.config.load import CONFIG_OF_RUN, require_run
from digen_core.config.run import RunConfig
from digen_core.control.protocol import Device
from digen_core.errors import UserError
from digen_core.inputs.text import number_of
from digen_core.records import EvaluationReport
from digen_core.trace.spans import DEVICES_OF_RUN, read_devices
from digen_core.transport.files import (
    remove_folder,
    remove_leftovers,
    replace_text,
    try_lock,
)
from digen_core.transport.metrics import METRICS_OF_RUN, read_metrics
from digen_core.transport.profiles import PROFILES_OF_RUN
from flows.runtime.context import RunContext
from flows.runtime.fleet.losses import StateLostError
from flows.runtime.notify import notify
from flows.runtime.observers import forwarding, observers, say, warn
from tasks.tracking.spool import Spool
from tasks.tracking.tracker import Tracker
from tasks.unanswered import UNANSWERED

LOOK_SECONDS: Final = 2.0
"""How long a lock is tried: who looks whether a run is trained, such as ``digen ls``, shares it for
a moment, as does ``digen sync``."""

NO_LOCKS: Final = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


@contextmanager
def resuming(config: RunConfig, run_dir: Path) -> Iterator[Resumption]:
    """Yield from where a run can be resumed, while no other process works on it.

    Raises:
        UserError: another process does, or the run cannot continue with this config.
    """
    require_run(run_dir)
    with locked(run_dir):
        remove_leftovers(run_dir)
        resumption = resumption_of(config, run_dir)
        for error in resumption.damaged:
            say(f"{error}; going on from the one before")
        yield resumption


@contextmanager
def locked(run_dir: Path) -> Iterator[None]:
    """Keep other processes from writing in a run's folder; the lock goes with this process.

    Raises:
        UserError: another process has the lock, or the disk has no locks.
    """
    path = run_dir / LOCK_OF_RUN
    with ExitStack() as stack:
        try:
            is_ours = stack.enter_context(try_lock(path, seconds=LOOK_SECONDS))
        except OSError as error:
            if error.errno not in NO_LOCKS:
                raise
            raise UserError(
                f"{path} cannot be locked ({error.strerror}); mount its disk with locks, which NFS "
                "and Lustre may have (flock), or use another one"
            ) from error
        if not is_ours:
            raise trained_elsewhere(run_dir, path.read_text())
        path.write_text(f"{os.getpid()} on {os.uname().nodename}")
        yield


def folder_to_resume(config: RunConfig, resume: str | None) -> Path | None:
    """Return the folder of the run to resume; None: a new one begins.

    Args:
        config: of the run.
        resume: its folder, or "auto".
    """
    if resume and resume != AUTO:
        folder = Path(resume)
        is_named = folder.name not in ("", "..")
        return folder if is_named else Path(os.path.abspath(folder))  # its name is the run's
    return begun_before(config) or (newest_run(config) if resume else None)


def begun_before(config: RunConfig) -> Path | None:
    """Return the folder of the run that this flow run began; None if it is called first.

    A worker calls the flow of a deployment again for a flow run that was suspended, or by Retry.
    """
    if runtime.deployment.id is None:
        return None
    for path in Path(config.tracking.runs_dir).glob(f"*/{LINEAGE_OF_RUN}"):
        with suppress(UserError):  # that of another run may be damaged
            lineage = read_lineage(path.parent)
            if lineage and runtime.flow_run.id in lineage.flow_run_ids:
                return path.parent
    return None


def mark_crashed_flows(flow_run_ids: Sequence[str]) -> None:
    """Tell Prefect that flow runs of this run have ended: a process that is killed does not."""
    ended: State[Any] = Crashed(message="its process ended; the run goes on in another flow run")
    running = FlowRunFilterState.model_validate({"type": {"any_": ["RUNNING", "PENDING"]}})
    if not flow_run_ids:
        return
    ids = [UUID(flow_run_id) for flow_run_id in flow_run_ids]
    try:
        with get_client(sync_client=True) as client:
            for key in ("id", "parent_flow_run_id"):
                among = FlowRunFilter.model_validate({key: {"any_": ids}, "state": running})
                for flow_run in client.read_flow_runs(flow_run_filter=among):
                    client.set_flow_run_state(flow_run.id, ended, force=True)
    except UNANSWERED as error:
        why = " ".join(str(error).split())
        warn(f"Prefect may show the run as running where it was killed: {why}")


def tracker_of(config: RunConfig, name: str, run_dir: Path, lineage: Lineage | None) -> Tracker:
    """Return the tracker of a run: a new one, or that of the run of MLflow that it began.

    Args:
        config: of the run.
        name: of the run in MLflow.
        run_dir: folder of the run.
        lineage: of a run that is resumed; None too if it ended before that was written.

    Raises:
        UserError: MLflow cannot be reached, or does not take the run.
    """
    flow_run_id = runtime.flow_run.id
    with forwarding("tasks.tracking"):
        if lineage is not None:
            return Tracker.resume(config, run_dir, lineage.mlflow_run_id, flow_run_id)
        if Spool.open(run_dir) is not None:
            return Tracker.resume(config, run_dir, None, flow_run_id)
        return Tracker.start(config, name, run_dir, flow_run_id)


def go_on(run: RunContext, resumption: Resumption) -> None:
    """Resume a run from a checkpoint, or from its start if there is none."""
    run_dir = resumption.run_dir
    say(f"resuming {run_dir.name} after {number_of(resumption.num_iterations, 'iteration')}")
    if resumption.lineage:
        mark_crashed_flows([i for i in resumption.lineage.flow_run_ids if i != runtime.flow_run.id])
    replace_text(run_dir / CONFIG_OF_RUN, run.config.model_dump_json(indent=2))
    run.fleet.took_part(_known_devices(run_dir))
    evaluations = _stand_at(run, resumption)
    for record in read_metrics(run_dir / METRICS_OF_RUN):
        run.tracker.log_iteration(record)
    for tag, report in sorted(evaluations.items(), key=lambda item: item[1].version):
        run.tracker.log_evaluation(tag, report)
        for observer in observers():
            observer.on_evaluation(tag, report)


def _known_devices(run_dir: Path) -> list[Device]:
    """Return the devices that a run had before; none if what says so is missing or damaged."""
    try:
        return read_devices(run_dir / DEVICES_OF_RUN)
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as error:
        warn(f"{run_dir / DEVICES_OF_RUN} is damaged and left out: {' '.join(str(error).split())}")
        return []


def go_back(run: RunContext, error: StateLostError | DamagedError) -> None:
    """Put a run back to where it stood at its last whole checkpoint, and say so.

    Args:
        run: whose tasks were all given up.
        error: a worker was lost with the optimizer's state, or a checkpoint turned out damaged.

    Raises:
        StateLostError: there are no checkpoints of such a run.
        DamagedError: no checkpoint is whole.
    """
    if not run.workers.keeps_state:
        raise error
    if isinstance(error, DamagedError) and run.progress.checkpoint is not None:
        run.progress.is_damaged(run.progress.checkpoint)
    else:
        run.progress.went_back()
    folder = run.run_dir / CHECKPOINTS_OF_RUN
    checkpoint, damaged = last_checkpoint(folder, run.progress.damaged)
    if checkpoint is None and run.progress.damaged:
        raise error
    manifest = read_manifest(checkpoint) if checkpoint else None
    back = Resumption(run.run_dir, run.lineage, checkpoint, manifest, tuple(damaged))
    notify(
        run,
        "resumed",
        f"{error}; the run goes on from {checkpoint or 'its start'}, after iteration "
        f"{back.num_iterations} (resumed {number_of(run.progress.num_resumed, 'time')} by itself)",
    )
    while not run.inbox.empty():  # what tasks of before still sent
        run.inbox.get_nowait()
    run.trace.forget_from(back.num_iterations)
    _stand_at(run, back)


def _stand_at(run: RunContext, resumption: Resumption) -> dict[str, EvaluationReport]:
    """Forget what a run did after a checkpoint; return the evaluations that stay, by tag."""
    discard(resumption.run_dir, resumption)
    evaluations = evaluations_of(resumption.run_dir)
    run.progress.stand_at(
        resumption.checkpoint, resumption.manifest, resumption.num_iterations, evaluations
    )
    for observer in observers():
        observer.on_resume(resumption.num_iterations)
    return evaluations


COUNTED_FROM_ONE: Final = {EVALUATIONS_OF_RUN, PROFILES_OF_RUN, "grids", "timelines", "videos"}
"""Folders of what people look at; those of data name the index of an iteration."""


def discard(run_dir: Path, resumption: Resumption) -> None:
    """Remove what a run did after the checkpoint that it is resumed from."""
    version = resumption.manifest.version if resumption.manifest else 0
    for path in run_dir.glob("*/iteration-*"):  # files, or folders of images and trajectories
        number = re.fullmatch(r"iteration-(\d+)", path.stem)
        first = 1 if path.parent.name in COUNTED_FROM_ONE else 0
        if number is None or int(number[1]) - first < resumption.num_iterations:
            continue
        if path.is_dir():
            remove_folder(path)  # under another name: a worker may still write to it
        else:
            path.unlink()
    for tag, report in evaluations_of(run_dir).items():
        if report.version > version:
            (run_dir / EVALUATIONS_OF_RUN / f"{tag}.json").unlink()
    for checkpoint in checkpoints_in(run_dir / CHECKPOINTS_OF_RUN):
        if int(checkpoint.name[1:]) > version:
            remove_folder(checkpoint)
