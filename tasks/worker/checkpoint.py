"""Keep a train state on disk, beside the tasks of the workers that hold it."""

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from distributed import Client

from digen_core.checkpoints.manifest import CHECKPOINTS_OF_RUN, Position
from digen_core.checkpoints.retention import prune
from digen_core.checkpoints.tensors import Contents, begin, finish, write_rows
from tasks.cluster.calls import on_worker
from tasks.worker.engine import engine_of


def keep_checkpoint(
    client: Client,
    workers: Sequence[str],
    run_id: str,
    version: int,
    run_dir: Path,
    position: Position,
) -> bool:
    """Have a device write the checkpoint of a version that it made; return when it is on disk.

    Each member of a gang writes its rows, by a thread that is none of Dask's: tasks continue.

    Args:
        client: of the cluster.
        workers: addresses of the workers of the device, by rank.
        run_id: of the run.
        version: that was made.
        run_dir: folder of the run.
        position: of the run when the version was made.

    Returns:
        Whether it was written: not if the device has let go of it, for one that came after it.

    Raises:
        OSError: the checkpoint could not be written; those before it are still there.
        WorkerLostError: a worker is gone.
        UserError: there is no such metric as config.checkpoints.best_by.
    """
    leader, folder = workers[0], run_dir / CHECKPOINTS_OF_RUN
    ask = partial(on_worker, client, seconds=None)
    if not ask(leader, _begin, run_id, folder, version):
        return False
    with ThreadPoolExecutor(len(workers)) as pool:
        written = list(pool.map(lambda at: ask(at, _write, run_id, version, folder), workers))
    hashes, contents = zip(*written, strict=True)
    ask(leader, _finish, run_dir, version, hashes[0], position, contents)
    return True


async def is_there(path: Path) -> bool:
    """Say, in a worker, whether it sees a file."""
    return await asyncio.to_thread(path.is_file)


async def _begin(run_id: str, folder: Path, version: int) -> bool:
    if version not in engine_of(run_id).unsaved:
        return False
    await asyncio.to_thread(begin, folder, version)
    return True


async def _write(run_id: str, version: int, folder: Path) -> tuple[str, Contents]:
    """Write this member's rows, and return the version's hash and what they hold."""
    engine = engine_of(run_id)
    state = engine.unsaved.pop(version)
    return state.weights_hash, await asyncio.to_thread(write_rows, folder, state, engine.gang)


async def _finish(
    run_dir: Path,
    version: int,
    weights_hash: str,
    position: Position,
    members: Sequence[Contents],
) -> None:
    folder = run_dir / CHECKPOINTS_OF_RUN
    await asyncio.to_thread(finish, folder, version, weights_hash, position, members)
    await asyncio.to_thread(prune, run_dir, position.config.checkpoints)
