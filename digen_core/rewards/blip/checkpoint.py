"""ImageReward's published files: a BLIP model and a head, put into the classes of transformers."""

import json
import re
from collections.abc import Iterator, Mapping
from math import isqrt
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor, nn

from digen_core.errors import ConfigError
from digen_core.rewards.checkpoints import read_checkpoint

if TYPE_CHECKING:
    from transformers.models.blip.modeling_blip import BlipVisionModel
    from transformers.models.blip.modeling_blip_text import BlipTextModel

WEIGHTS: Final = "ImageReward.pt"
TEXT_CONFIG: Final = "med_config.json"

_VISION_HEADS: Final = 16  # of a ViT-L/16
_VISION: Final = "blip.visual_encoder."
_TEXT: Final = "blip.text_encoder."
_HEAD: Final = "mlp.layers."
_UNUSED: Final = (
    "blip.vision_proj.",
    "blip.text_proj.",
    "blip.text_encoder.embeddings.position_ids",
)

_PARTS: Final = {
    "cls_token": "embeddings.class_embedding",
    "pos_embed": "embeddings.position_embedding",
    "patch_embed.proj": "embeddings.patch_embedding",
    "norm": "post_layernorm",
}
_BLOCK: Final = re.compile(r"blocks\.(\d+)\.(.+)")
_BLOCK_PARTS: Final = {
    "norm1": "layer_norm1",
    "norm2": "layer_norm2",
    "attn.qkv": "self_attn.qkv",
    "attn.proj": "self_attn.projection",
}


def load_checkpoint(
    folder: Path, dtype: torch.dtype
) -> tuple["BlipVisionModel", "BlipTextModel", nn.Sequential]:
    """Return the models that see image and prompt, and the head, which is in float32.

    Args:
        folder: with ``ImageReward.pt`` and ``med_config.json``. Nothing in them is run.
        dtype: of the two models.

    Raises:
        ConfigError: a file cannot be read, or holds no ImageReward.
    """
    from transformers import BlipTextConfig, BlipVisionConfig
    from transformers.models.blip.modeling_blip import BlipVisionModel
    from transformers.models.blip.modeling_blip_text import BlipTextModel

    weights, text = _read(folder)
    try:
        with torch.device("meta"):
            image_encoder = BlipVisionModel(BlipVisionConfig(**_vision_settings(weights)))
            settings = BlipTextConfig(**_text_settings(text, weights))
            text_encoder = BlipTextModel(settings, add_pooling_layer=False)
            head = nn.Sequential(*_head_layers(weights))
        parts = _parts(weights)
        for name, module in (("vision", image_encoder), ("text", text_encoder), ("head", head)):
            module.load_state_dict(parts[name], assign=True)
    except Exception as error:  # whatever sizes and settings that do not fit raise
        reason = " ".join(str(error).split())[:300]
        raise ConfigError(f"{folder / WEIGHTS} holds no ImageReward: {reason}") from error
    positions = torch.arange(settings.max_position_embeddings)[None]
    text_encoder.embeddings.register_buffer("position_ids", positions, persistent=False)
    return image_encoder.to(dtype), text_encoder.to(dtype), head


def _read(folder: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    path = folder / WEIGHTS
    weights = read_checkpoint(path, f"{path} of ImageReward cannot be read")
    path = folder / TEXT_CONFIG
    try:
        text = json.loads(path.read_text())
    except Exception as error:  # whatever a damaged file raises
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise ConfigError(f"{path} of ImageReward cannot be read: {reason}") from error
    if not isinstance(weights, dict) or not isinstance(text, dict):
        raise ConfigError(f"{folder} holds no ImageReward: its files are no tables")
    others = [name for name, value in weights.items() if not isinstance(value, Tensor)]
    if others:
        raise ConfigError(f"{folder / WEIGHTS} holds no ImageReward: {others[0]} is no tensor")
    return weights, text


def _vision_settings(weights: Mapping[str, Tensor]) -> dict[str, Any]:
    width, _, patch, _ = weights[f"{_VISION}patch_embed.proj.weight"].shape
    grid = isqrt(weights[f"{_VISION}pos_embed"].shape[1] - 1)
    return {
        "hidden_size": width,
        "intermediate_size": len(weights[f"{_VISION}blocks.0.mlp.fc1.weight"]),
        "num_hidden_layers": _num_layers(weights, f"{_VISION}blocks."),
        "num_attention_heads": _VISION_HEADS,
        "image_size": grid * patch,
        "patch_size": patch,
        "layer_norm_eps": 1e-6,
    }


def _text_settings(text: Mapping[str, Any], weights: Mapping[str, Tensor]) -> dict[str, Any]:
    """Return the settings of the text encoder; it looks at the image in each layer."""
    layer = f"{_TEXT}encoder.layer."
    return {
        "vocab_size": len(weights[f"{_TEXT}embeddings.word_embeddings.weight"]),
        "encoder_hidden_size": weights[f"{layer}0.crossattention.self.key.weight"].shape[1],
        "num_hidden_layers": _num_layers(weights, layer),
        "is_decoder": True,  # without it there is no attention to the image
        **{
            name: text[name]
            for name in (
                "hidden_act",
                "hidden_size",
                "intermediate_size",
                "layer_norm_eps",
                "max_position_embeddings",
                "num_attention_heads",
            )
        },
    }


def _head_layers(weights: Mapping[str, Tensor]) -> Iterator[nn.Linear]:
    """Yield the layers of the head; there is nothing between them but, in training, dropout."""
    for name in _head_names(weights):
        outputs, inputs = weights[f"{name}weight"].shape
        yield nn.Linear(inputs, outputs)


def _head_names(weights: Mapping[str, Tensor]) -> list[str]:
    names = {name.removesuffix("weight") for name in weights if name.startswith(_HEAD)}
    return sorted(
        (name for name in names if not name.endswith("bias")),
        key=lambda name: int(name.removeprefix(_HEAD).rstrip(".")),
    )


def _parts(weights: Mapping[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    """Return the parameters of each part by their names in transformers, in float32."""
    parts: dict[str, dict[str, Tensor]] = {"vision": {}, "text": {}, "head": {}}
    places = {name: str(place) for place, name in enumerate(_head_names(weights))}
    for name, value in weights.items():
        if name.startswith(_UNUSED):
            continue
        if name.startswith(_HEAD):
            layer, kind = name[: name.rindex(".") + 1], name.rpartition(".")[2]
            parts["head"][f"{places[layer]}.{kind}"] = value.float()
        elif name.startswith(_VISION):
            parts["vision"][_vision_name(name.removeprefix(_VISION))] = value.float()
        else:
            parts["text"][name.removeprefix(_TEXT)] = value.float()
    return parts


def _vision_name(name: str) -> str:
    if name in _PARTS:
        return _PARTS[name]
    module, _, kind = name.rpartition(".")
    block = _BLOCK.fullmatch(module)
    if block:
        number, part = block.groups()
        return f"encoder.layers.{number}.{_BLOCK_PARTS.get(part, part)}.{kind}"
    return f"{_PARTS.get(module, module)}.{kind}"


def _num_layers(weights: Mapping[str, Tensor], prefix: str) -> int:
    return len({name.removeprefix(prefix).split(".")[0] for name in weights if prefix in name})
