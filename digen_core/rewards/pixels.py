"""Images as files and other libraries want them: 8 bits, channels last."""

from io import BytesIO
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor


def as_pixels(images: Tensor) -> NDArray[np.uint8]:
    """Return images [..., 3, H, W] in [0, 1] as uint8 [..., H, W, 3]; what is outside is cut."""
    scaled = (images.detach() * 255).round().clamp(0, 255).to(torch.uint8)
    pixels: NDArray[np.uint8] = scaled.movedim(-3, -1).cpu().numpy()
    return pixels


def as_file(pixels: NDArray[Any], kind: Literal["png", "jpeg"]) -> bytes:
    """Return an image [H, W, 3] of uint8 as a file; a JPEG has the quality 95."""
    file = BytesIO()
    Image.fromarray(pixels).save(file, format=kind.upper(), quality=95)
    return file.getvalue()
