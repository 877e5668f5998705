"""A run's checkpoints as files: which there are, what each is of, and whether it is whole.

| RUN/checkpoints/v0007/manifest.json        all but the tensors, as :class:`Manifest`
| RUN/checkpoints/v0007/manifest.sha256      of the manifest, as ``sha256sum`` writes it
| RUN/checkpoints/v0007/state.safetensors    ``<part>/<parameter>``; the parts are those of hashes
|
| A gang of 2 writes state-00001-of-00002.safetensors and -00002-of-00002, a member's rows in each.

Importing this module must not import torch: a mistake in ``--resume`` shows at once. Tensors are
read and written in :mod:`digen_core.checkpoints.tensors`.
"""

import hashlib
import os
import re
from collections.abc import Collection
from pathlib import Path
from typing import Final

from pydantic import Field, ValidationError
from safetensors import SafetensorError, safe_open

from digen_core.config.run import RunConfig
from digen_core.errors import UserError
from digen_core.inputs.reading import UnreadableError, read_json, reason_of
from digen_core.strict import Strict

CHECKPOINTS_OF_RUN: Final = "checkpoints"
EVALUATIONS_OF_RUN: Final = "evaluation"
"""Folders of a run's folder."""
LINEAGE_OF_RUN: Final = "lineage.json"
MANIFEST: Final = "manifest.json"
MANIFEST_SUM: Final = "manifest.sha256"
FORMAT: Final = 2
"""Of what is written: in 2, hashes are of fingerprints. What says nothing is 1."""


class DamagedError(UserError):
    """A checkpoint is not what is written here; the message names it and what is wrong."""


class Lineage(Strict):
    """Where a run comes from: kept from its start on, so that it can always be resumed."""

    run_id: str
    mlflow_run_id: str
    flow_run_ids: tuple[str, ...]
    """Of Prefect: the flow run that began the run, and those that resumed it."""

    prompts_hash: str
    """Of the training prompts, in their order."""

    evaluation_prompts_hash: str


class Position(Strict):
    """How far a run is, save for the tensors."""

    num_iterations: int
    """Finished ones. Prompts, noise and steps of the next follow from its number and the seed."""

    metrics: dict[str, float]
    """Of the last of them."""

    reward_history: dict[str, tuple[float, ...]]
    """DDPO's: the last rewards of each prompt, the oldest first; empty for other algorithms."""

    lineage: Lineage
    config: RunConfig


class Manifest(Position):
    """All of a checkpoint but its tensors."""

    format: int = 1

    version: int
    """Updates so far. The learning rate, Adam's step and the average's step follow from it."""

    weights_hash: str
    """Content hash that names the version."""

    hashes: dict[str, str]
    """Content hash of each part: weights, exp_avg, exp_avg_sq, and ema and old where they differ
    from the weights."""

    num_files: int = Field(1, ge=1)
    """Of tensors: one for each member of the gang that wrote it."""


def name_of(version: int) -> str:
    """Return the name of a version's folder."""
    return f"v{version:04d}"


def name_of_state(rank: int, size: int) -> str:
    """Return the name of the file with the rows of a gang's member."""
    return "state.safetensors" if size == 1 else f"state-{rank + 1:05d}-of-{size:05d}.safetensors"


def checkpoints_in(folder: Path) -> list[Path]:
    """Return the complete checkpoints in a folder, the oldest first; what is half-written is none.

    They may be damaged since.

    Raises:
        UserError: the folder cannot be read, or is a link that leads nowhere.
    """
    try:
        names = os.listdir(folder)
    except FileNotFoundError as error:
        if folder.is_symlink():
            where = f"{folder} leads to {folder.readlink()}, which is not there"
            raise UserError(f"{where}; mount its disk, or correct the link") from error
        names = []
    except OSError as error:
        raise UserError(f"cannot read {folder}: {reason_of(error)}") from error
    found = [folder / name for name in names if re.fullmatch(r"v\d{4,}", name)]
    return sorted(found, key=lambda path: int(path.name[1:]))


def read_manifest(checkpoint: Path) -> Manifest:
    """Return what a checkpoint is of; its tensors are looked at, but not read.

    Raises:
        DamagedError: a file of it is missing, cut off, or holds other tensors than it should; or
            it has another format.
    """
    try:
        content = (checkpoint / MANIFEST).read_bytes()
        if sum_of(content) != (checkpoint / MANIFEST_SUM).read_text(encoding="utf-8"):
            raise damaged(checkpoint, f"{MANIFEST} does not have the hash in {MANIFEST_SUM}")
        manifest = Manifest.model_validate_json(content)
        parts = set()
        for rank in range(manifest.num_files):
            path = checkpoint / name_of_state(rank, manifest.num_files)
            with safe_open(path, framework="numpy") as file:  # refuses a cut-off file
                parts |= {name.partition("/")[0] for name in file.keys()}  # noqa: SIM118
    except ValidationError as error:
        raise damaged(checkpoint, f"{MANIFEST}: {reason_of(error)}") from error
    except (OSError, UnicodeDecodeError, SafetensorError) as error:
        raise damaged(checkpoint, str(error)) from error
    if manifest.format != FORMAT:
        raise DamagedError(
            f"checkpoint {checkpoint} has format {manifest.format}, but this digen reads {FORMAT}: "
            "it was written by another version of digen"
        )
    if checkpoint.name != name_of(manifest.version) or parts != set(manifest.hashes):
        raise damaged(checkpoint, f"its manifest is of {name_of(manifest.version)} with {parts}")
    return manifest


def sum_of(manifest: bytes) -> str:
    """Return what the file beside a manifest says of it."""
    return f"{hashlib.sha256(manifest).hexdigest()}  {MANIFEST}\n"


def last_checkpoint(
    folder: Path, excluded: Collection[Path] = ()
) -> tuple[Path | None, list[DamagedError]]:
    """Return the newest checkpoint that is whole, None if there is none, and what newer ones lack.

    What its tensors hold is verified when they are read. One that is removed meanwhile, as by a run
    that trains, is not damaged: a newer one has come.

    Args:
        folder: of a run's checkpoints.
        excluded: those whose tensors were found to be damaged.

    Raises:
        DamagedError: there are some, but none is whole.
        UserError: as `checkpoints_in`.
    """
    complaints: list[DamagedError] = []
    for checkpoint in reversed(checkpoints_in(folder)):
        if checkpoint in excluded:
            continue
        try:
            read_manifest(checkpoint)
        except DamagedError as error:
            if not os.path.lexists(checkpoint):  # a link that leads nowhere is damaged
                return last_checkpoint(folder, {*excluded, checkpoint})
            complaints.append(error)
        else:
            return checkpoint, complaints
    if complaints:
        raise complaints[0]
    return None, []


def damaged(checkpoint: Path, why: str) -> DamagedError:
    """Return the error that reports a damaged checkpoint to a person."""
    return DamagedError(f"checkpoint {checkpoint} is damaged: {' '.join(why.split())}")


def read_lineage(run_dir: Path) -> Lineage | None:
    """Return where a run comes from; None if it ended before it was tracked.

    Raises:
        UserError: the file cannot be understood.
    """
    path = run_dir / LINEAGE_OF_RUN
    try:
        return Lineage.model_validate(read_json(path, "where the run comes from,"))
    except UnreadableError:
        if path.exists():
            raise
        return None
    except ValidationError as error:
        raise UserError(f"cannot read {path}: {reason_of(error)}") from error
