"""PickScore: logit_scale cos(image, prompt) / 26.

Kirstain et al. 2023 (https://arxiv.org/abs/2305.01569), equation 1; FlowGRPO divides by 26, which
brings the scores of good images to about 1.
"""

from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor

from digen_core.config.rewards.preferences import PickScoreConfig
from digen_core.rewards.clip.clip import Clip

DIVISOR: Final = 26


class PickScore:
    """Scores images by what people would pick."""

    def __init__(self, config: PickScoreConfig, device: torch.device) -> None:
        self._clip = Clip(config, device)

    def __call__(self, images: Tensor, prompts: Sequence[str]) -> Tensor:
        """Score images [B, 3, H, W]: float32 [B]."""
        return self._clip.scale * self._clip.similarities(images, prompts) / DIVISOR
