"""The weights of a version on disk: safetensors with the version and hashes in its header."""

import json
import os
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from digen_core.transport.arrays import Weights, content_hash


def write_weights(weights_dir: Path, version: int, weights: Weights, ema: Weights) -> Path:
    """Write the weights and their moving average, atomically, and drop the previous version's.

    One file: ``v0007.safetensors`` with tensors ``weights/<name>`` and ``ema/<name>``.
    """
    weights_dir.mkdir(parents=True, exist_ok=True)
    path = weights_dir / f"v{version:04d}.safetensors"
    tensors = {f"weights/{name}": value for name, value in weights.items()}
    tensors |= {f"ema/{name}": value for name, value in ema.items()}
    unfinished = path.with_suffix(".unfinished")
    header = {
        "version": version,
        "hashes": {"weights": content_hash(weights), "ema": content_hash(ema)},
    }
    save_file(
        {name: np.ascontiguousarray(value) for name, value in tensors.items()},
        unfinished,
        metadata={"digen": json.dumps(header)},
    )
    os.replace(unfinished, path)
    (weights_dir / f"v{version - 1:04d}.safetensors").unlink(missing_ok=True)
    return path


def read_weights(weights_dir: Path) -> tuple[int, Weights, Weights]:
    """Return the last version's number, its weights and their moving average.

    Raises:
        FileNotFoundError: there is none.
        ValueError: the file's content is not what its header says.
    """
    paths = list(weights_dir.glob("v*.safetensors"))
    if not paths:
        raise FileNotFoundError(f"no weights in {weights_dir}")
    path = max(paths, key=lambda path: int(path.stem[1:]))
    try:
        with safe_open(path, framework="numpy") as file:
            header = json.loads(file.metadata()["digen"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise ValueError(f"{path} is damaged: {error}") from error
    parts: dict[str, Weights] = {"weights": {}, "ema": {}}
    for key, value in tensors.items():
        part, _, name = key.partition("/")
        parts[part][name] = value
    if {part: content_hash(values) for part, values in parts.items()} != header["hashes"]:
        raise ValueError(f"{path} is damaged: its content does not have its header's hashes")
    return int(header["version"]), parts["weights"], parts["ema"]
