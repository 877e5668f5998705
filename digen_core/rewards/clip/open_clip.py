"""CLIP models as open_clip saves them, in the format of transformers: HPS v2 is published so."""

import re
from collections.abc import Iterator, Mapping
from math import isqrt
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor

from digen_core.errors import ConfigError
from digen_core.rewards.checkpoints import read_checkpoint

if TYPE_CHECKING:
    from transformers import CLIPModel

_HEADS: Final = 16  # of a ViT-H/14, in both towers

_NAMES: Final = {
    "token_embedding": "text_model.embeddings.token_embedding",
    "ln_final": "text_model.final_layer_norm",
    "visual.conv1": "vision_model.embeddings.patch_embedding",
    "visual.ln_pre": "vision_model.pre_layrnorm",
    "visual.ln_post": "vision_model.post_layernorm",
}
_PARAMETERS: Final = {
    "positional_embedding": "text_model.embeddings.position_embedding.weight",
    "visual.class_embedding": "vision_model.embeddings.class_embedding",
    "visual.positional_embedding": "vision_model.embeddings.position_embedding.weight",
    "logit_scale": "logit_scale",
}
_TRANSPOSED: Final = {
    "text_projection": "text_projection.weight",
    "visual.proj": "visual_projection.weight",
}
_LAYER: Final = re.compile(r"(visual\.)?transformer\.resblocks\.(\d+)\.(.+)")
_LAYER_PARTS: Final = {
    "ln_1": "layer_norm1",
    "ln_2": "layer_norm2",
    "attn.out_proj": "self_attn.out_proj",
    "mlp.c_fc": "mlp.fc1",
    "mlp.c_proj": "mlp.fc2",
}


def convert_checkpoint(checkpoint: Path) -> "CLIPModel":
    """Return the model of an open_clip checkpoint, a ViT-H/14 such as HPS v2's, in float32.

    Args:
        checkpoint: ``.pt`` file with the weights, by themselves or as ``state_dict``. Nothing in it
            is run.

    Raises:
        ConfigError: it cannot be read, or is no such model.
    """
    from transformers import CLIPConfig, CLIPModel

    found = read_checkpoint(checkpoint, f"{checkpoint} cannot be read as a checkpoint")
    weights = found.get("state_dict", found) if isinstance(found, dict) else {}
    try:
        with torch.device("meta"):
            model = CLIPModel(CLIPConfig(**_settings(weights)))
        converted = dict(_converted(weights))
        model.load_state_dict(converted, assign=True, strict=False)
        missing = {name for name, _ in model.named_parameters()} ^ converted.keys()
    except (KeyError, RuntimeError) as error:
        raise ConfigError(f"{checkpoint} holds no ViT-H/14 of open_clip: {error}") from error
    if missing:
        raise ConfigError(
            f"{checkpoint} holds no ViT-H/14 of open_clip: {min(missing)} does not fit"
        )
    return model


def _settings(weights: Mapping[str, Tensor]) -> dict[str, Any]:
    """Return the sizes of a model, as ``CLIPConfig`` takes them, from its weights."""
    vocabulary, text_width = weights["token_embedding.weight"].shape
    width, _, patch, _ = weights["visual.conv1.weight"].shape
    grid = isqrt(len(weights["visual.positional_embedding"]) - 1)
    text = {
        "vocab_size": vocabulary,
        "max_position_embeddings": len(weights["positional_embedding"]),
        "eos_token_id": vocabulary - 1,
        "bos_token_id": vocabulary - 2,
        **_sizes(weights, "transformer.", text_width),
    }
    vision = {
        "image_size": grid * patch,
        "patch_size": patch,
        **_sizes(weights, "visual.transformer.", width),
    }
    width = weights["text_projection"].shape[1]
    return {"text_config": text, "vision_config": vision, "projection_dim": width}


def _sizes(weights: Mapping[str, Tensor], tower: str, width: int) -> dict[str, Any]:
    blocks = f"{tower}resblocks."
    numbers = {name.split(".")[blocks.count(".")] for name in weights if name.startswith(blocks)}
    return {
        "hidden_size": width,
        "intermediate_size": len(weights[f"{blocks}0.mlp.c_fc.weight"]),
        "num_hidden_layers": len(numbers),
        "num_attention_heads": _HEADS,
        "hidden_act": "gelu",
        "projection_dim": weights["text_projection"].shape[1],
    }


def _converted(weights: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """Yield the parameters by their names in transformers; an unknown one keeps its name."""
    for name, value in weights.items():
        if name == "attn_mask":  # a constant that some checkpoints hold
            continue
        tensor = value.float()
        layer = _LAYER.fullmatch(name)
        if layer:
            visual, number, part = layer.groups()
            tower = "vision_model" if visual else "text_model"
            yield from _layer_part(f"{tower}.encoder.layers.{number}", part, tensor)
        elif name in _TRANSPOSED:
            yield _TRANSPOSED[name], tensor.T.contiguous()
        elif name in _PARAMETERS:
            yield _PARAMETERS[name], tensor
        else:
            module, _, kind = name.rpartition(".")
            yield f"{_NAMES.get(module, module)}.{kind}", tensor


def _layer_part(layer: str, part: str, tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Yield a tensor of a transformer layer; query, key and value are one in open_clip."""
    if part.startswith("attn.in_proj_"):
        kind = part.removeprefix("attn.in_proj_")
        for letter, third in zip("qkv", tensor.chunk(3), strict=True):
            yield f"{layer}.self_attn.{letter}_proj.{kind}", third.contiguous()
        return
    module, _, kind = part.rpartition(".")
    yield f"{layer}.{_LAYER_PARTS.get(module, module)}.{kind}", tensor
