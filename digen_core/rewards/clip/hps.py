"""HPS v2: cos(image, prompt), of a CLIP ViT-H/14 trained on preferences.

Wu et al. 2023 (https://arxiv.org/abs/2306.09341). The cosine itself, as its published code and
DanceGRPO have it; tables show it times 100.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from digen_core.config.rewards.preferences import HpsConfig
from digen_core.rewards.clip.clip import Clip


class Hps:
    """Scores images by what people prefer."""

    def __init__(self, config: HpsConfig, device: torch.device) -> None:
        self._clip = Clip(config, device)

    def __call__(self, images: Tensor, prompts: Sequence[str]) -> Tensor:
        """Score images [B, 3, H, W]: float32 [B]."""
        return self._clip.similarities(images, prompts)
