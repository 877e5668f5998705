"""Hand what happened to everyone who keeps or shows it: disk, MLflow, Prefect, the terminal."""

from dataclasses import replace
from pathlib import Path
from time import time

import numpy as np

from digen_core.checkpoints.manifest import CHECKPOINTS_OF_RUN, Position, name_of
from digen_core.maths.ddpo import RewardHistory
from digen_core.records import EvaluationReport, IterationRecord
from digen_core.trace.drawing import draw_apart, is_drawn
from digen_core.trace.spans import DEVICES_OF_RUN, SPANS_OF_RUN, write_devices, write_spans
from digen_core.transport.files import sync, sync_all
from digen_core.transport.images import IMAGES_OF_RUN, prune_images
from digen_core.transport.metrics import METRICS_OF_RUN, write_metrics
from digen_core.transport.samples import write_samples
from digen_core.transport.trajectories import TRAJECTORIES_OF_RUN, prune_trajectories
from flows.runtime.context import RunContext
from flows.runtime.disk import naming
from flows.runtime.fleet.losses import StateLostError
from flows.runtime.observers import observers
from tasks.cluster.calls import WorkerLostError
from tasks.worker.checkpoint import keep_checkpoint


def publish_iteration(
    run: RunContext, record: IterationRecord, history: RewardHistory | None
) -> None:
    """Keep and show a finished iteration.

    On disk before its checkpoint, so that a run that is resumed from that lacks nothing; shown
    after it, so that nothing is shown which is done again.

    Args:
        run: its context.
        record: of the iteration.
        history: of rewards, when the iteration made its version; None if it made none.
    """
    with run.publishing:
        if is_drawn(record.iteration, run.config.num_iterations) or run.limit_reached:
            spans = run.trace.around(record.iteration, time())
            timeline = draw_apart(spans, run.fleet.devices, record.iteration)
            record = replace(record, timeline=timeline)
        with naming(run.run_dir):
            _keep(run, record, history)
        for observer in observers():
            observer.on_iteration(record)


def _keep(run: RunContext, record: IterationRecord, history: RewardHistory | None) -> None:
    write_samples(run.run_dir / "samples", record.iteration, record.samples)
    _keep_beside_samples(run, record)
    write_spans(run.run_dir / SPANS_OF_RUN, record.iteration, record.spans)
    write_devices(run.run_dir / DEVICES_OF_RUN, run.fleet.all_devices)
    write_metrics(run.run_dir / METRICS_OF_RUN, record)
    if history is not None and run.workers.keeps_state:
        position = _position(run, record.iteration + 1, record.metrics, history)
        run.progress.has_made(record.version, position)
        if run.config.is_kept(record.version):
            _keep_checkpoint(run, record.version, position)
    run.tracker.log_iteration(record)
    run.tracker.log_profiles(record.iteration)
    run.tracker.log_versions(dict(run.progress.hashes))


def keep_last(run: RunContext) -> None:
    """Have the last version's checkpoint on disk, however few of the others get one.

    Raises:
        StateLostError: the version was lost before.
    """
    version = run.progress.version
    if (run.run_dir / CHECKPOINTS_OF_RUN / name_of(version)).exists():
        return
    at, position = run.progress.made or (0, _position(run, 0, {}, {}))
    if at != version:
        raise StateLostError(f"version {version} is of an iteration that was not finished")
    with run.publishing, naming(run.run_dir):
        _keep_checkpoint(run, version, position)


def _keep_beside_samples(run: RunContext, record: IterationRecord) -> None:
    """Have on disk what the workers kept beside the rows, and remove what is not to be kept."""
    tracking = run.config.tracking
    if tracking.keep_images == "extremes":
        named = {row.image for row in record.samples if row.image}
        prune_images(run.run_dir, record.iteration, named)
    for kept in (IMAGES_OF_RUN, TRAJECTORIES_OF_RUN):
        folder = run.run_dir / kept / f"iteration-{record.iteration:06d}"
        if folder.is_dir():
            sync_all(folder)
            sync(folder.parent)
            sync(run.run_dir)
    prune_trajectories(run.run_dir, record.iteration, tracking.keep_trajectories)


def _position(
    run: RunContext, num_iterations: int, metrics: dict[str, float], history: RewardHistory
) -> Position:
    return Position(
        num_iterations=num_iterations,
        metrics=metrics,
        reward_history=dict(history),
        lineage=run.lineage,
        config=run.config,
    )


def _keep_checkpoint(run: RunContext, version: int, position: Position) -> None:
    lost: Exception | None = None
    for name in run.fleet.trainer_devices()[:2]:  # the holder of the state, and who has a copy
        try:
            workers = run.fleet.workers_of(name)
            if keep_checkpoint(run.client, workers, run.run_id, version, run.shared_dir, position):
                checkpoint = run.run_dir / CHECKPOINTS_OF_RUN / name_of(version)
                run.progress.kept(checkpoint, position.num_iterations)
                return
            if lost is None:  # the holder has let go of it
                return
        except (WorkerLostError, LookupError) as error:  # and with it the state, if nobody has it
            lost = error
    raise StateLostError(f"version {version} was lost before it was kept") from lost


def publish_evaluation(
    run: RunContext, tag: str, report: EvaluationReport, prompts: list[str], images: np.ndarray
) -> None:
    """Keep and show an evaluation and its images, uint8 [prompts, k, H, W, 3].

    Of videos they are [prompts, k, F, H, W, 3].
    """
    name = run.tracker.log_evaluation(tag, report)
    run.tracker.log_images(name, prompts, images, report.version)
    for observer in observers():
        observer.on_evaluation(tag, report)


def publish_model(run: RunContext, weights: Path) -> None:
    """Register the trained weights, adapters or a transformer, in MLflow."""
    run.tracker.log_model(weights, run.progress.version, run.progress.hashes[run.progress.version])
