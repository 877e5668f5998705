"""The adapter that a run trained, read from its checkpoints, and written for other programs.

No model is loaded: the manifest tells family, rank and alpha, and the file holds the layers.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from safetensors.numpy import save_file

from digen_core.checkpoints.average import kept_average
from digen_core.checkpoints.manifest import (
    CHECKPOINTS_OF_RUN,
    DamagedError,
    Manifest,
    last_checkpoint,
    read_manifest,
)
from digen_core.checkpoints.slot_tables import DIFFUSERS_NAMES, Target
from digen_core.checkpoints.slots import Slot, is_known, slot_of
from digen_core.config.load import require_run
from digen_core.config.train import LoraConfig
from digen_core.errors import UserError
from digen_core.models.expert_names import PARTS, split
from digen_core.models.trainable import FIRST_ADAPTER

PROGRAMS: Final[dict[Target, str]] = {"comfyui": "ComfyUI", "kohya": "kohya's scripts"}
_MATRICES: Final[dict[Target, tuple[str, str]]] = {
    "comfyui": ("lora_A", "lora_B"),
    "kohya": ("lora_down", "lora_up"),
}
_NAME: Final = re.compile(rf"(.+)\.lora_([AB])\.{FIRST_ADAPTER}\.weight")


class Matrices(NamedTuple):
    """What a LoRA has of a layer: it adds alpha / rank * up down."""

    down: np.ndarray  # [rank, inputs]
    up: np.ndarray  # [outputs, rank]


class Adapter(NamedTuple):
    """The adapter of a version: the average, or the weights where there is none."""

    manifest: Manifest
    lora: LoraConfig
    layers: dict[str, Matrices]  # by the name in diffusers' transformer


def read_adapter(run_dir: Path, say: Callable[[str], None]) -> Adapter:
    """Return the adapter of the newest version that is whole.

    Args:
        run_dir: folder of the run.
        say: is told of newer ones that are damaged.

    Raises:
        UserError: there is none, all are damaged, or the run trains all weights.
    """
    require_run(run_dir)
    excluded: list[Path] = []
    while True:
        checkpoint, damaged = last_checkpoint(run_dir / CHECKPOINTS_OF_RUN, excluded)
        if checkpoint is None:
            raise UserError(f"{run_dir} holds no whole version to export")
        for error in damaged if not excluded else ():
            say(str(error))
        try:
            return _adapter_in(checkpoint, run_dir)
        except DamagedError as error:
            if checkpoint.exists():  # else a run that trains has removed it
                say(str(error))
            excluded.append(checkpoint)


def _adapter_in(checkpoint: Path, run_dir: Path) -> Adapter:
    manifest = read_manifest(checkpoint)
    lora = manifest.config.train.lora
    if lora is None:
        raise UserError(
            f"{run_dir} trains all weights, so it has no adapter; when it has ended its "
            f"transformer is in {run_dir / 'transformer'}, as diffusers loads it"
        )
    with kept_average(checkpoint) as weights:
        layers = _layers_of({name: weights[name] for name in weights})
    return Adapter(manifest, lora, layers)


def _layers_of(weights: Mapping[str, np.ndarray]) -> dict[str, Matrices]:
    found: dict[str, dict[str, np.ndarray]] = defaultdict(dict)
    for name, value in weights.items():
        if match := _NAME.fullmatch(name):
            found[match[1]][match[2]] = value
    return {layer: Matrices(pair["A"], pair["B"]) for layer, pair in found.items()}


def save_for(target: Target, adapter: Adapter, path: Path) -> None:
    """Write an adapter as one safetensors file that a program loads, with its alpha.

    Of two experts each that is trained has a file, as it is one model in the program.

    Raises:
        UserError: the program has no slot for one of its layers, or none that is known.
    """
    for part, layers in split(adapter.layers).items():
        _save_one(target, adapter._replace(layers=layers), files_of(adapter, path)[part])


def files_of(adapter: Adapter, path: Path) -> dict[str, Path]:
    """Return the file of each expert that is trained; of one transformer, a path as it is."""
    first, parts = next(iter(adapter.layers)).partition(".")[0], split(adapter.layers)
    if first not in PARTS.values():
        return dict.fromkeys(parts, path)
    names = {own: path.with_stem(f"{path.stem}-{side}-noise") for side, own in PARTS.items()}
    return {part: names[part] for part in parts}


def _save_one(target: Target, adapter: Adapter, path: Path) -> None:
    tensors = {}
    down, up = _MATRICES[target]
    for key, (own, alpha) in _placed(target, adapter).items():
        tensors[f"{key}.{down}.weight"] = np.ascontiguousarray(own.down)
        tensors[f"{key}.{up}.weight"] = np.ascontiguousarray(own.up)
        tensors[f"{key}.alpha"] = np.array(alpha, np.float32)
    save_file(tensors, path, {"format": "pt"})


def _placed(target: Target, adapter: Adapter) -> dict[str, tuple[Matrices, float]]:
    """Return matrices and alpha by the program's name of a layer."""
    family = adapter.manifest.config.model.family
    if not is_known(target, family):
        raise UserError(_unknown(target, family))
    parts: dict[str, dict[Slot, Matrices]] = defaultdict(dict)
    for layer, own in adapter.layers.items():
        slot = slot_of(target, family, layer, (own.up.shape[0], own.down.shape[1]))
        if slot is None:
            raise UserError(_unplaced(target, family, layer))
        parts[slot.layer][slot] = own
    return {
        _key(target, family, slot): (_fused(found), adapter.lora.alpha * len(found))
        for slot, found in parts.items()
    }


def _unknown(target: Target, family: str) -> str:
    other = "--for comfyui and --for hub take" if is_known("comfyui", family) else "--for hub takes"
    return f"no LoRA of {family} is known to load in {PROGRAMS[target]}; {other} it"


def _unplaced(target: Target, family: str, layer: str) -> str:
    other = {"kohya": "--for comfyui may take it; ", "comfyui": ""}[target]
    return (
        f"the adapter has a part for {layer}, and no place for that of {family} is known in "
        f"{PROGRAMS[target]}; {other}--for hub takes any, or train without it (train.lora.targets)"
    )


def _key(target: Target, family: str, layer: str) -> str:
    if target == "kohya":
        return "lora_unet_" + layer.replace(".", "_")
    return ("transformer." if family in DIFFUSERS_NAMES else "diffusion_model.") + layer


def _fused(parts: Mapping[Slot, Matrices]) -> Matrices:
    """Return one LoRA of layers that are one matrix: their ranks add up, so does their alpha.

    Layers of it that have no adapter get rows of zeros.
    """
    slots = sorted(parts, key=lambda slot: slot.part)
    first, own = slots[0], [parts[slot] for slot in slots]
    down = np.concatenate([matrices.down for matrices in own])
    if first.heights == (1,):
        return Matrices(down, _in_order(own[0].up, first.swapped))
    width = down.shape[1]
    up = np.zeros((sum(first.heights) * width, len(down)), down.dtype)
    column = 0
    for slot, matrices in zip(slots, own, strict=True):
        row = sum(first.heights[: slot.part]) * width
        rows, rank = matrices.up.shape
        up[row : row + rows, column : column + rank] = matrices.up
        column += rank
    return Matrices(down, up)


def _in_order(up: np.ndarray, is_swapped: bool) -> np.ndarray:
    return np.concatenate(np.split(up, 2)[::-1]) if is_swapped else up
