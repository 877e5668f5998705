"""HPS v3: what people prefer, by a Qwen2-VL of 7 billion parameters with a head.

Ma et al. 2025 (https://arxiv.org/abs/2508.03789), its published file and constants: the head
predicts a distribution of the preference, whose mean is the score.
"""

from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor, nn

from digen_core.config.rewards.reward_models import Hps3Config
from digen_core.rewards.checkpoints import published_folder
from digen_core.rewards.pixels import as_pixels
from digen_core.rewards.vlm.model import HeadedVlm, Sight
from digen_core.rewards.vlm.weights import read_safetensors

WEIGHTS: Final = "HPSv3.safetensors"

_PIXELS: Final = 256 * 28 * 28
_HIDDEN: Final = (1024, 16)
_DROPOUT: Final = 0.05


class Hps3:
    """Scores images by what people prefer for a prompt."""

    def __init__(self, config: Hps3Config, device: torch.device) -> None:
        """Load the model.

        Raises:
            ConfigError: something of it cannot be loaded.
        """
        self._model = HeadedVlm(config, Sight("image", _PIXELS, _PIXELS), device)
        path = published_folder(config.path, config.revision, [WEIGHTS], "HPS v3") / WEIGHTS
        self._model.load(read_safetensors(path), _head(self._model.width), path)

    def __call__(self, images: Tensor, prompts: Sequence[str]) -> Tensor:
        """Score images [B, 3, H, W] in [0, 1]: float32 [B]."""
        return self._model(list(as_pixels(images)[:, None]), prompts)[:, 0, 0]


def _head(width: int) -> nn.Module:
    """Return the head without weights: mean and spread of one preference."""
    with torch.device("meta"):
        return nn.Sequential(
            nn.Linear(width, _HIDDEN[0]),
            nn.ReLU(),
            nn.Dropout(_DROPOUT),
            nn.Linear(*_HIDDEN),
            nn.ReLU(),
            nn.Linear(_HIDDEN[1], 2),
        )
