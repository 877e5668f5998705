"""Inputs of what became NaN or infinite, on disk, so that it can be done again and looked into.

| RUN/nonfinite/i000003-g00-f1-denoise.safetensors   a fragment's latents before the step
| RUN/nonfinite/i000003-p007-train-0.safetensors     pairs of a pack

Only the first ``MOST_KEPT`` of a run are kept: where one is NaN, many may be.
"""

import json
import logging
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from digen_core.errors import UserError
from digen_core.inputs.reading import parse_json
from digen_core.transport.files import share, written_whole

NONFINITE_OF_RUN: Final = "nonfinite"
MOST_KEPT: Final = 16
_FILES: Final = f"i{'[0-9]' * 6}-*.safetensors"

InputKind = Literal["denoise", "decode", "score", "train"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class KeptInput:
    """What a piece of work was given whose result is NaN or infinite."""

    name: str  # of its file, without the iteration
    kind: InputKind
    found: str  # what is NaN or infinite
    iteration: int
    group: int  # for the size of its samples
    version: int  # of the policy; -1: none took part
    about: dict[str, Any]  # plain values, by kind
    arrays: dict[str, np.ndarray] = field(default_factory=dict)


def keep_input(run_dir: Path, kept: KeptInput) -> None:
    """Keep an input, unless there are enough; what cannot be written is only logged."""
    folder = run_dir / NONFINITE_OF_RUN
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if sum(1 for _ in folder.glob(_FILES)) >= MOST_KEPT:
            return
        names = [item.name for item in fields(kept) if item.name != "arrays"]
        header = {name: getattr(kept, name) for name in names}
        arrays = {name: np.ascontiguousarray(value) for name, value in kept.arrays.items()}
        path = folder / f"i{kept.iteration:06d}-{kept.name}.safetensors"
        with written_whole(path, durable=False) as unfinished:
            save_file(arrays, unfinished, metadata={"digen": json.dumps(header)})
            share(unfinished)
    except (OSError, SafetensorError) as error:  # a full disk is the latter
        logger.warning("the input of what is NaN or infinite cannot be kept: %s", error)


def read_inputs(run_dir: Path, iteration: int) -> list[KeptInput]:
    """Return what is kept of an iteration, by name.

    Raises:
        UserError: nothing is, or a file is damaged.
    """
    folder = run_dir / NONFINITE_OF_RUN
    paths = sorted(folder.glob(f"i{iteration:06d}-*.safetensors"))
    if not paths:
        others = sorted({int(path.name[1:7]) + 1 for path in folder.glob(_FILES)})
        known = f"only of {', '.join(map(str, others))}" if others else "nor of any other"
        raise UserError(
            f"{run_dir} keeps nothing of iteration {iteration + 1} that was NaN or infinite, "
            f"{known}"
        )
    return [_read(path) for path in paths]


def _read(path: Path) -> KeptInput:
    try:
        with safe_open(path, framework="numpy") as file:
            header = parse_json(file.metadata()["digen"])
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        return KeptInput(**header, arrays=arrays)
    except (SafetensorError, OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path} is damaged: {error}") from error
