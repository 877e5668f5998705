"""The tensors of a checkpoint: a train state on disk, whole or not at all."""

import shutil
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from digen_core.checkpoints.manifest import (
    CHECKPOINTS_OF_RUN,
    FORMAT,
    MANIFEST,
    MANIFEST_SUM,
    STATE,
    Manifest,
    Position,
    checkpoints_in,
    damaged,
    name_of,
    read_manifest,
    sum_of,
)
from digen_core.training.optimizer import TrainState
from digen_core.transport.arrays import Weights
from digen_core.transport.files import sync
from digen_core.transport.fingerprint import content_hash


def write_checkpoint(folder: Path, state: TrainState, position: Position) -> Path:
    """Write a checkpoint and return its path, ``folder/v<version>``.

    It appears whole or not at all, whenever the process or the machine ends: it is written and
    synced under another name first. One of the same version is replaced.

    Args:
        folder: of the checkpoints; made if it is missing.
        state: what is kept.
        position: of the run when the state was made.
    """
    parts = _parts_of(state)
    manifest = Manifest(
        **dict(position),
        format=FORMAT,
        version=state.version,
        weights_hash=state.weights_hash,
        hashes={part: content_hash(tensors) for part, tensors in parts.items()},
    )
    folder.mkdir(parents=True, exist_ok=True)
    final = folder / name_of(state.version)
    unfinished = folder / f".{final.name}.unfinished"
    shutil.rmtree(unfinished, ignore_errors=True)  # of a process that was killed
    unfinished.mkdir()
    tensors = {
        f"{part}/{name}": np.asarray(value, order="C")
        for part, values in parts.items()
        for name, value in values.items()
    }
    save_file(tensors, unfinished / STATE)
    content = manifest.model_dump_json(indent=2).encode()
    (unfinished / MANIFEST).write_bytes(content)
    (unfinished / MANIFEST_SUM).write_text(sum_of(content), encoding="utf-8")
    for path in (*sorted(unfinished.iterdir()), unfinished):
        sync(path)
    remove_checkpoint(final)
    unfinished.rename(final)
    sync(folder)
    return final


def read_checkpoint(checkpoint: Path) -> TrainState:
    """Return the train state that a checkpoint holds.

    Raises:
        DamagedError: the checkpoint is not what was written.
    """
    manifest = read_manifest(checkpoint)
    parts: dict[str, Weights] = {part: {} for part in manifest.hashes}
    try:
        with safe_open(checkpoint / STATE, framework="numpy") as file:
            for key in file.keys():  # noqa: SIM118 - it is no dict
                part, _, name = key.partition("/")
                parts[part][name] = file.get_tensor(key)
    except SafetensorError as error:
        raise damaged(checkpoint, str(error)) from error
    for part, expected in manifest.hashes.items():
        if content_hash(parts[part]) != expected:
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
    )


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


def remove_checkpoint(checkpoint: Path) -> None:
    """Remove a checkpoint if it is there; what is half-removed counts as none."""
    going = checkpoint.with_name(f".{checkpoint.name}.removed")
    shutil.rmtree(going, ignore_errors=True)  # of a process that was killed
    if checkpoint.exists():
        checkpoint.rename(going)
        shutil.rmtree(going)


def _parts_of(state: TrainState) -> Mapping[str, Weights]:
    parts = {"weights": state.weights, "exp_avg": state.exp_avg, "exp_avg_sq": state.exp_avg_sq}
    if state.ema is not state.weights:
        parts["ema"] = state.ema
    if state.old is not None:
        parts["old"] = state.old
    return parts
