"""Keep a train state on disk, beside the tasks of the worker that holds it."""

import asyncio
from pathlib import Path

from distributed import Client

from digen_core.checkpoints.manifest import CHECKPOINTS_OF_RUN, Position
from digen_core.checkpoints.retention import prune
from digen_core.checkpoints.tensors import write_checkpoint
from digen_core.training.optimizer import TrainState
from tasks.cluster.calls import on_worker
from tasks.worker.engine import engine_of


def keep_checkpoint(
    client: Client, worker: str, run_id: str, version: int, run_dir: Path, position: Position
) -> None:
    """Have a worker write the checkpoint of a version that it made; return when it is on disk.

    It is written by a thread that is none of Dask's: the worker's tasks continue.

    Args:
        client: of the cluster.
        worker: address of the worker.
        run_id: of the run.
        version: that was made.
        run_dir: folder of the run.
        position: of the run when the version was made.

    Raises:
        OSError: the checkpoint could not be written; those before it are still there.
        WorkerLostError: the worker is gone.
        UserError: there is no such metric as config.checkpoints.best_by.
    """
    on_worker(client, worker, _write, run_id, version, run_dir, position, seconds=None)


async def _write(run_id: str, version: int, run_dir: Path, position: Position) -> None:
    state = engine_of(run_id).unsaved.pop(version)
    await asyncio.to_thread(_write_and_prune, state, run_dir, position)


def _write_and_prune(state: TrainState, run_dir: Path, position: Position) -> None:
    write_checkpoint(run_dir / CHECKPOINTS_OF_RUN, state, position)
    prune(run_dir, position.config.checkpoints)
