"""Images as files and other libraries want them: 8 bits, channels last."""

from collections.abc import Sequence
from io import BytesIO
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torch.nn import functional


def as_pixels(images: Tensor) -> NDArray[np.uint8]:
    """Return images [..., 3, H, W] in [0, 1] as uint8 [..., H, W, 3]; what is outside is cut."""
    pixels: NDArray[np.uint8] = in_steps(images).to(torch.uint8).movedim(-3, -1).cpu().numpy()
    return pixels


def in_steps(images: Tensor) -> Tensor:
    """Return images in [0, 1] in the whole numbers 0 to 255 that 8 bits hold, in their dtype."""
    return (images.detach() * 255).round().clamp(0, 255)


def shrunk(images: Tensor, side: int, mode: Literal["bilinear", "bicubic"]) -> Tensor:
    """Return images [N, 3, H, W] scaled to a shorter side, without smoothing before, as float32.

    It is what torchvision's ``Resize`` of tensors does with ``antialias=False``: the longer side is
    rounded down, and what bicubic weights overshoot is kept.
    """
    height, width = images.shape[-2:]
    short, long = min(height, width), max(height, width)
    sizes = (side, side * long // short)
    wanted = sizes if height <= width else sizes[::-1]
    return functional.interpolate(images.float(), size=wanted, mode=mode, align_corners=False)


def centre(images: Tensor, height: int, width: int) -> Tensor:
    """Return the middle of images [N, 3, H, W] that are no smaller: [N, 3, height, width]."""
    top, left = (
        round((have - want) / 2)
        for have, want in zip(images.shape[-2:], (height, width), strict=True)
    )
    return images[..., top : top + height, left : left + width]


def standardized(images: Tensor, mean: Sequence[float], deviation: Sequence[float]) -> Tensor:
    """Return images [N, 3, H, W] in steps of 8 bits, less a mean and over a deviation of [0, 1]."""
    shift, scale = (images.new_tensor(own)[:, None, None] for own in (mean, deviation))
    return (images / 255 - shift) / scale


def as_file(pixels: NDArray[Any], kind: Literal["png", "jpeg"]) -> bytes:
    """Return an image [H, W, 3] of uint8 as a file; a JPEG has the quality 95."""
    file = BytesIO()
    Image.fromarray(pixels).save(file, format=kind.upper(), quality=95)
    return file.getvalue()
