"""A tiny ImageReward in the files, and with the names, of the published one."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

WIDTH, VISION_WIDTH, INNER, LAYERS = 24, 48, 40, 2
SIZE, PATCH = 64, 16
WORDS = [
    "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "two", "three", "red", "green", "blue",
    "circle", "square", "squares", "circles", "and", "very", "dog", "##s",
]  # fmt: skip
_VOCABULARY = len(WORDS) + 2  # the published one has two tokens more than its tokenizer, too
TEXT = {
    "architectures": ["BertModel"], "hidden_act": "gelu", "hidden_size": WIDTH,
    "intermediate_size": INNER, "layer_norm_eps": 1e-12, "max_position_embeddings": 40,
    "num_attention_heads": 12, "num_hidden_layers": LAYERS, "vocab_size": _VOCABULARY,
    "encoder_width": 1024, "add_cross_attention": True,
}  # fmt: skip
"""What ``med_config.json`` says."""
_HEAD = {0: (1024, WIDTH), 2: (128, 1024), 4: (64, 128), 6: (16, 64), 7: (1, 16)}


def write_image_reward(folder: Path, **changes: Any) -> Path:
    """Write ``ImageReward.pt``, ``med_config.json`` and a tokenizer's folder beside them.

    Args:
        folder: that gets them.
        changes: tensors in place of those of the published names, or None to leave one out.
    """
    from transformers import BertTokenizer

    weights = {**tiny_weights(), **changes}
    weights = {name: value for name, value in weights.items() if value is not None}
    weights["blip.text_encoder.embeddings.position_ids"] = torch.arange(40)[None]
    torch.save(weights, folder / "ImageReward.pt")
    (folder / "med_config.json").write_text(json.dumps(TEXT))
    tokenizer = BertTokenizer(vocab={word: number for number, word in enumerate(WORDS)})
    tokenizer.save_pretrained(folder / "tokenizer")
    return folder


def tiny_weights() -> dict[str, torch.Tensor]:
    """Return weights by the published names: numbers of one generator, in the names' order."""
    rng, shapes = np.random.default_rng(0), _shapes()
    return {name: _drawn(name, shapes[name], rng) for name in sorted(shapes)}


def _drawn(name: str, shape: tuple[int, ...], rng: np.random.Generator) -> torch.Tensor:
    values = rng.standard_normal(shape)
    if len(shape) > 1:
        return torch.tensor(values * 0.3, dtype=torch.float32)
    is_scale = "norm" in name.lower() and name.endswith("weight")
    return torch.tensor(values * 0.1 + is_scale, dtype=torch.float32)


def _shapes() -> dict[str, tuple[int, ...]]:
    seen, read = "blip.visual_encoder.", "blip.text_encoder."
    shapes: dict[str, tuple[int, ...]] = {
        f"{seen}cls_token": (1, 1, VISION_WIDTH),
        f"{seen}pos_embed": (1, (SIZE // PATCH) ** 2 + 1, VISION_WIDTH),
        f"{seen}patch_embed.proj.weight": (VISION_WIDTH, 3, PATCH, PATCH),
        f"{seen}patch_embed.proj.bias": (VISION_WIDTH,),
        **_norm(f"{seen}norm", VISION_WIDTH),
        f"{read}embeddings.word_embeddings.weight": (_VOCABULARY, WIDTH),
        f"{read}embeddings.position_embeddings.weight": (40, WIDTH),
        **_norm(f"{read}embeddings.LayerNorm", WIDTH),
        **_linear("blip.vision_proj", 256, VISION_WIDTH),
        **_linear("blip.text_proj", 256, WIDTH),
    }
    for number, (outputs, inputs) in _HEAD.items():
        shapes |= _linear(f"mlp.layers.{number}", outputs, inputs)
    for number in range(LAYERS):
        shapes |= _vision_block(f"{seen}blocks.{number}")
        shapes |= _text_layer(f"{read}encoder.layer.{number}")
    return shapes


def _vision_block(block: str) -> dict[str, tuple[int, ...]]:
    width = VISION_WIDTH
    return {
        **_norm(f"{block}.norm1", width),
        **_norm(f"{block}.norm2", width),
        **_linear(f"{block}.attn.qkv", 3 * width, width),
        **_linear(f"{block}.attn.proj", width, width),
        **_linear(f"{block}.mlp.fc1", 4 * width, width),
        **_linear(f"{block}.mlp.fc2", width, 4 * width),
    }


def _text_layer(layer: str) -> dict[str, tuple[int, ...]]:
    shapes = {
        **_linear(f"{layer}.intermediate.dense", INNER, WIDTH),
        **_linear(f"{layer}.output.dense", WIDTH, INNER),
        **_norm(f"{layer}.output.LayerNorm", WIDTH),
    }
    for kind, looks_at in (("attention", WIDTH), ("crossattention", VISION_WIDTH)):
        shapes |= _linear(f"{layer}.{kind}.self.query", WIDTH, WIDTH)
        shapes |= _linear(f"{layer}.{kind}.self.key", WIDTH, looks_at)
        shapes |= _linear(f"{layer}.{kind}.self.value", WIDTH, looks_at)
        shapes |= _linear(f"{layer}.{kind}.output.dense", WIDTH, WIDTH)
        shapes |= _norm(f"{layer}.{kind}.output.LayerNorm", WIDTH)
    return shapes


def _linear(name: str, outputs: int, inputs: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": (outputs, inputs), f"{name}.bias": (outputs,)}


def _norm(name: str, width: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": (width,), f"{name}.bias": (width,)}
