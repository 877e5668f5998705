"""The tensors of a checkpoint: a train state on disk, whole or not at all."""

import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from digen_core.checkpoints.manifest import (
    CHECKPOINTS_OF_RUN,
    FORMAT,
    MANIFEST,
    MANIFEST_SUM,
    Manifest,
    Position,
    checkpoints_in,
    damaged,
    name_of,
    name_of_state,
    read_manifest,
    sum_of,
)
from digen_core.gang.members import ALONE, Gang
from digen_core.gang.rows import lengths_of, overlaps, rows_of
from digen_core.training.contents import added, contents_of, rows_content
from digen_core.training.train_state import TrainState
from digen_core.transport.arrays import Weights
from digen_core.transport.files import make_folder, remove_folder, share, sync
from digen_core.transport.fingerprint import Content, hash_of

Contents = dict[str, dict[str, Content]]
"""By part and parameter what a checkpoint holds, or one member's rows of it."""


def write_checkpoint(folder: Path, state: TrainState, position: Position) -> Path:
    """Write a checkpoint of a device that is one worker; as `begin`, `write_rows` and `finish`."""
    begin(folder, state.version)
    contents = write_rows(folder, state, ALONE)
    return finish(folder, state.version, state.weights_hash, position, [contents])


def begin(folder: Path, version: int) -> None:
    """Make room for the checkpoint of a version.

    Args:
        folder: of the checkpoints; made if it is missing.
        version: that is to be written.
    """
    unfinished = _unfinished(folder, version)
    shutil.rmtree(unfinished, ignore_errors=True)  # of a process that was killed
    make_folder(unfinished)


def write_rows(folder: Path, state: TrainState, gang: Gang) -> Contents:
    """Write and sync a member's rows of a state, after `begin`, and return what they hold.

    Args:
        folder: of the checkpoints.
        state: what is kept.
        gang: whose member this process is. Nothing here waits for the others.
    """
    parts = _parts_of(state)
    tensors = {
        f"{part}/{name}": np.asarray(value, order="C")
        for part, values in parts.items()
        for name, value in values.items()
    }
    path = _unfinished(folder, state.version) / name_of_state(gang.rank, gang.size)
    save_file(tensors, path)
    share(path)
    sync(path)
    return {
        part: {
            name: rows_content(value, state.lengths[name], gang) for name, value in values.items()
        }
        for part, values in parts.items()
    }


def finish(
    folder: Path,
    version: int,
    weights_hash: str,
    position: Position,
    members: Sequence[Contents],
) -> Path:
    """Let a checkpoint appear whose rows are written, and return its path, ``folder/v<version>``.

    It appears whole or not at all, whenever the process or the machine ends. One of the same
    version is replaced.

    Args:
        folder: of the checkpoints.
        version: that was written.
        weights_hash: that names it.
        position: of the run when the state was made.
        members: what `write_rows` returned, by rank.
    """
    whole = {
        part: {name: added([own[part][name] for own in members]) for name in values}
        for part, values in members[0].items()
    }
    manifest = Manifest(
        **dict(position),
        format=FORMAT,
        version=version,
        weights_hash=weights_hash,
        hashes={part: hash_of(contents) for part, contents in whole.items()},
        num_files=len(members),
    )
    content = manifest.model_dump_json(indent=2).encode()
    final, unfinished = folder / name_of(version), _unfinished(folder, version)
    (unfinished / MANIFEST).write_bytes(content)
    (unfinished / MANIFEST_SUM).write_text(sum_of(content), encoding="utf-8")
    for path in (unfinished / MANIFEST, unfinished / MANIFEST_SUM, unfinished):
        sync(path)
    remove_folder(final)
    unfinished.rename(final)
    sync(folder)
    return final


def _unfinished(folder: Path, version: int) -> Path:
    return folder / f".{name_of(version)}.unfinished"


def read_checkpoint(checkpoint: Path, gang: Gang = ALONE) -> TrainState:
    """Return the train state that a checkpoint holds: a member's rows of it (collective).

    Raises:
        DamagedError: the checkpoint is not what was written.
    """
    manifest = read_manifest(checkpoint)
    parts: dict[str, Weights] = {part: {} for part in manifest.hashes}
    with opened(checkpoint, manifest) as files:
        try:
            for key in files[0].keys():  # noqa: SIM118 - it is no dict
                part, _, name = key.partition("/")
                parts[part][name] = rows_in(files, key, gang)
        except (OSError, SafetensorError) as error:
            raise damaged(checkpoint, str(error)) from error
    for part, expected in manifest.hashes.items():
        if hash_of(contents_of(parts[part], gang)) != expected:
            raise damaged(checkpoint, f"the content of {part} does not have the manifest's hash")
    weights = parts["weights"]
    return TrainState(
        version=manifest.version,
        weights=weights,
        weights_hash=manifest.weights_hash,
        exp_avg=parts["exp_avg"],
        exp_avg_sq=parts["exp_avg_sq"],
        ema=parts.get("ema", weights),
        old=parts.get("old"),
        lengths=lengths_of(weights, gang),
    )


@contextmanager
def opened(checkpoint: Path, manifest: Manifest) -> Iterator[Sequence[Any]]:
    """Yield a checkpoint's open files of tensors, by the rank of the member that wrote each.

    Raises:
        DamagedError: a file is missing or cut off.
    """
    with ExitStack() as stack:
        try:
            files = [
                stack.enter_context(
                    safe_open(checkpoint / name_of_state(rank, manifest.num_files), "numpy")
                )
                for rank in range(manifest.num_files)
            ]
        except (OSError, SafetensorError) as error:
            raise damaged(checkpoint, str(error)) from error
        yield files


def rows_in(files: Sequence[Any], key: str, gang: Gang) -> np.ndarray:
    """Return a member's rows of a tensor in a checkpoint's open files, whoever wrote them."""
    if len(files) == gang.size == 1:
        whole: np.ndarray = files[0].get_tensor(key)
        return whole
    slices = [file.get_slice(key) for file in files]
    length = sum(part.get_shape()[0] for part in slices)
    wanted = rows_of(length, gang.rank, gang.size)
    found = [slices[0][:0]]
    for rank, rows in overlaps(wanted, length, len(files)):
        kept = rows_of(length, rank, len(files)).start
        found.append(slices[rank][rows.start - kept : rows.stop - kept])
    return np.concatenate(found)


def last_state(run_dir: Path) -> TrainState:
    """Return the train state of a run's newest checkpoint.

    Raises:
        FileNotFoundError: it has none.
        DamagedError: the newest is damaged.
    """
    found = checkpoints_in(run_dir / CHECKPOINTS_OF_RUN)
    if not found:
        raise FileNotFoundError(f"no checkpoint in {run_dir / CHECKPOINTS_OF_RUN}")
    return read_checkpoint(found[-1])


def _parts_of(state: TrainState) -> Mapping[str, Weights]:
    parts = {"weights": state.weights, "exp_avg": state.exp_avg, "exp_avg_sq": state.exp_avg_sq}
    if state.ema is not state.weights:
        parts["ema"] = state.ema
    if state.old is not None:
        parts["old"] = state.old
    return parts
