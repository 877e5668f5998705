"""CLIPScore: 2.5 max(cos(image, prompt), 0).

Hessel et al. 2021 (https://arxiv.org/abs/2104.08718). FlowGRPO's CLIP score is
logit_scale cos / 30, with logit_scale 100: the same, 4/3 times as large, where the cosine is > 0.
"""

from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor

from digen_core.config.rewards.clip import ClipScoreConfig
from digen_core.rewards.clip.clip import Clip

WEIGHT: Final = 2.5


class ClipScore:
    """Scores the agreement of images and prompts."""

    def __init__(self, config: ClipScoreConfig, device: torch.device) -> None:
        self._clip = Clip(config, device)

    def __call__(self, images: Tensor, prompts: Sequence[str]) -> Tensor:
        """Score images [B, 3, H, W]: float32 [B]."""
        return WEIGHT * self._clip.similarities(images, prompts).clamp(min=0)
