"""HPS v2: cos(image, prompt), of a CLIP ViT-H/14 trained on preferences.

Wu et al. 2023 (https://arxiv.org/abs/2306.09341). The cosine itself, as its published code and
DanceGRPO have it; tables show it times 100. As there images that are not square are seen whole.
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from digen_core.config.rewards.preferences import HpsConfig
from digen_core.rewards.clip.clip import Clip


class Hps:
    """Scores images by what people prefer."""

    def __init__(self, config: HpsConfig, device: torch.device) -> None:
        self._clip = _SeesAll(config, device)

    def __call__(self, images: Tensor, prompts: Sequence[str]) -> Tensor:
        """Score images [B, 3, H, W]: float32 [B]."""
        return self._clip.similarities(images, prompts)


class _SeesAll(Clip):
    """A CLIP that sees all of an image, where others see a square in its middle."""

    def _prepared(self, pixels: list[NDArray[np.uint8]]) -> Tensor:
        """Return images [H, W, 3], those that are not square on black."""
        side = self._model.config.vision_config.image_size
        if self._antialias:
            pixels = [scaled(each, side) for each in pixels]
        return super()._prepared([on_black(each) for each in pixels])


def scaled(pixels: NDArray[np.uint8], side: int) -> NDArray[np.uint8]:
    """Return an image [H, W, 3] scaled to a longer side; one that is square as it is."""
    height, width = pixels.shape[:2]
    if height == width:
        return pixels
    scale = side / max(height, width)  # Pillow's ImageOps.contain rounds some sizes otherwise
    size = round(width * scale), round(height * scale)
    return np.asarray(Image.fromarray(pixels).resize(size, Image.Resampling.BICUBIC))


def on_black(pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return an image [H, W, 3] in the middle of a black square."""
    side = max(pixels.shape[:2])
    margins = [((side - own) // 2, (side - own + 1) // 2) for own in pixels.shape[:2]]
    return np.pad(pixels, [*margins, (0, 0)])
