"""LAION's aesthetic predictor: linear layers on the CLIP embedding of an image, about 1 to 10.

The first predictor is one layer, the "improved" one, which DDPO rewards with, a chain of five
(768-1024-128-64-16-1) without activations between them; the embedding has length 1. Both are read
from one safetensors file with a weight and a bias per layer.
"""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from digen_core.config.rewards.preferences import AestheticConfig
from digen_core.errors import ConfigError
from digen_core.rewards.clip.clip import Clip


class Aesthetic:
    """Scores images by how much people like them, whatever the prompt."""

    def __init__(self, config: AestheticConfig, device: torch.device) -> None:
        """Load CLIP and the head.

        Raises:
            ConfigError: one of them cannot be loaded, or they do not fit.
        """
        self._clip = Clip(config, device)
        self._head = load_head(config.head, self._clip.width).to(device)

    @torch.no_grad()
    def __call__(self, images: Tensor, prompts: Sequence[str]) -> Tensor:
        """Score images [B, 3, H, W]: float32 [B]."""
        scores: Tensor = self._head(self._clip.embed_images(images)).squeeze(-1)
        return scores


def load_head(path: str, width: int) -> nn.Sequential:
    """Return the layers of a head, in the order of the numbers in their names.

    Args:
        path: safetensors file with "weight" and "bias", or "layers.0.weight", "layers.0.bias", ...
        width: of the embedding.

    Raises:
        ConfigError: the file cannot be read, or its layers do not lead from ``width`` to 1.
    """
    try:
        tensors = load_file(Path(path))
    except (OSError, SafetensorError) as error:
        raise ConfigError(f"cannot read the aesthetic head {path}: {error}") from error
    names = [name.removesuffix("weight") for name in tensors if name.endswith("weight")]
    names.sort(key=lambda name: [int(part) for part in name.split(".") if part.isdigit()])
    if not names or set(tensors) != {name + part for name in names for part in ("weight", "bias")}:
        raise ConfigError(
            f"the aesthetic head {path} holds {sorted(tensors)}, not a weight and a bias per layer"
        )
    widths = [width] + [len(tensors[f"{name}bias"]) for name in names]
    shapes = [list(tensors[f"{name}weight"].shape) for name in names]
    if shapes != [[b, a] for a, b in pairwise(widths)] or widths[-1] != 1:
        raise ConfigError(
            f"the layers of the aesthetic head {path} have the shapes {shapes}; they must lead "
            f"from {width}, the width of the CLIP embedding, to 1"
        )
    layers = [nn.Linear(a, b) for a, b in pairwise(widths)]
    for name, layer in zip(names, layers, strict=True):
        layer.load_state_dict({part: tensors[name + part].float() for part in ("weight", "bias")})
    return nn.Sequential(*layers).requires_grad_(False)
