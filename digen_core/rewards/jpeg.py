"""The size of an image as a JPEG: rewards that need no model and cannot be mistaken.

From DDPO, section 5.1 (https://arxiv.org/abs/2305.13301); quality 95 and kB of 1000 bytes as in its
published code.
"""

from collections.abc import Sequence
from typing import Any, Final

import torch
from numpy.typing import NDArray
from torch import Tensor

from digen_core.rewards.pixels import as_file, as_pixels

BYTES_PER_KB: Final = 1000


def jpeg_incompressibility(images: Tensor, prompts: Sequence[str]) -> Tensor:
    """Return the kB [B] that images [B, 3, H, W] take as JPEG files, in float64."""
    return torch.tensor([_kilobytes(image) for image in as_pixels(images)], dtype=torch.float64)


def jpeg_compressibility(images: Tensor, prompts: Sequence[str]) -> Tensor:
    """Return minus the kB [B] that images [B, 3, H, W] take as JPEG files, in float64."""
    return -jpeg_incompressibility(images, prompts)


def _kilobytes(pixels: NDArray[Any]) -> float:
    return len(as_file(pixels, "jpeg")) / BYTES_PER_KB
