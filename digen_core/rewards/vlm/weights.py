"""Weights of reward models, under the names that transformers gives them, adapters merged."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from digen_core.errors import ConfigError
from digen_core.rewards.checkpoints import read_checkpoint

HEAD: Final = "rm_head."

_PEFT: Final = "base_model.model."
_BASE: Final = ".base_layer.weight"
_CORRECT: Final = "give the published file, and as `base` the model that it began as"
_UNREAD: Final = "lm_head."  # it gives words
_RENAMED: Final = (
    ("model.visual.", "visual."),
    ("model.language_model.", "language_model."),
    ("model.", "language_model."),
)


def name_of(name: str) -> str:
    """Return what a parameter is called in transformers' Qwen2VLModel.

    Checkpoints have the names of either layout of Qwen2VLForConditionalGeneration: layers of the
    text model are ``model.layers`` or ``model.language_model.layers``, the vision tower is
    ``visual`` or ``model.visual``. What is neither keeps its name.
    """
    for start, own in _RENAMED:
        if name.startswith(start):
            return own + name.removeprefix(start)
    return name


def fitted(
    weights: Mapping[str, Tensor], wanted: Mapping[str, torch.Size], path: Path
) -> dict[str, Tensor]:
    """Return weights by their names in transformers, if they are all that a model has.

    Args:
        weights: by their names in the file.
        wanted: shapes of the model's and of its head's, which begin with ``rm_head.``.
        path: of the file, for errors.

    Raises:
        ConfigError: one lacks, is none of the model's, or has another shape; the first is named.
    """
    found: dict[str, Tensor] = {}
    for own, value in weights.items():
        name = name_of(own)
        if name.startswith(_UNREAD):
            continue
        if name not in wanted or name in found:
            raise ConfigError(f"{path} has {own}, which the model has not; {_CORRECT}")
        if value.shape != wanted[name]:
            shapes = f"{list(value.shape)}, not {list(wanted[name])}"
            raise ConfigError(f"{path} has {own} of the shape {shapes}; {_CORRECT}")
        found[name] = value
    for name in wanted:
        if name not in found:
            raise ConfigError(f"{path} lacks {name}; {_CORRECT}")
    return found


def read_safetensors(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a safetensors file, on the CPU.

    Raises:
        ConfigError: it cannot be read.
    """
    from safetensors.torch import load_file

    try:
        weights: dict[str, Tensor] = load_file(path)
    except Exception as error:  # whatever a damaged file raises
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise ConfigError(f"{path} cannot be read: {reason}") from error
    return weights


def read_adapted(
    path: Path, scale_of: Callable[[int], float], dtype: torch.dtype
) -> dict[str, Tensor]:
    """Return the weights of a model that was trained with adapters, merged.

    For weights W and adapters A [r, in] and B [out, r], W + scale B A is computed in float32.

    Args:
        path: of the state dict of peft's model, as torch saves it. Nothing in it is run.
        scale_of: what B A is multiplied by, for the rank r.
        dtype: that merged weights are rounded to.

    Raises:
        ConfigError: it cannot be read, or an adapter does not fit; the message is one line.
    """
    weights = read_checkpoint(path, f"{path} cannot be read")
    if not isinstance(weights, dict):
        raise ConfigError(f"{path} holds a {type(weights).__name__}, not a state dict")
    for name, value in weights.items():
        if not isinstance(value, Tensor):
            raise ConfigError(f"{path} has {name}, which is no tensor; {_CORRECT}")
    plain = {str(name).removeprefix(_PEFT): value for name, value in weights.items()}
    layers = [name.removesuffix(_BASE) for name in plain if name.endswith(_BASE)]
    for layer in layers:
        try:
            plain[f"{layer}.weight"] = _merged(plain, layer, scale_of).to(dtype)
        except (KeyError, RuntimeError) as error:
            reason = " ".join(str(error).split())[:200]
            raise ConfigError(f"{path}: the adapter of {layer} does not fit: {reason}") from error
    return {name.replace(".base_layer.bias", ".bias"): value for name, value in plain.items()}


def _merged(plain: dict[str, Tensor], layer: str, scale_of: Callable[[int], float]) -> Tensor:
    """Take a layer's weight and adapter out, and return them merged, in float32."""
    names = (f"{layer}{_BASE}", *(f"{layer}.lora_{own}.default.weight" for own in "AB"))
    weight, down, up = (plain.pop(name).float() for name in names)
    return weight + scale_of(len(down)) * (up @ down)
