"""Images as files and other libraries want them: 8 bits, channels last."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


def as_pixels(images: Tensor) -> NDArray[np.uint8]:
    """Return images [..., 3, H, W] in [0, 1] as uint8 [..., H, W, 3]; what is outside is cut."""
    scaled = (images.detach() * 255).round().clamp(0, 255).to(torch.uint8)
    pixels: NDArray[np.uint8] = scaled.movedim(-3, -1).cpu().numpy()
    return pixels
