"""Frames of videos as VideoReward sees them: which of them, and two in one patch."""

from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

FEWEST, MOST = 4, 768
"""Frames that are seen, of a video that has as many."""

_TOGETHER: Final = 2  # frames in a patch


def seen_frames(num_frames: int, frames_per_second: float, rate: float) -> list[int]:
    """Return the indices of the frames that are seen: evenly spread, first and last among them.

    Their number is even: that of ``rate`` frames a second, at least 4, as many as there are at
    most.

    Args:
        num_frames: of the video, 2 or more.
        frames_per_second: at which it is played.
        rate: frames per second that are seen.
    """
    most = min(MOST, num_frames) // _TOGETHER * _TOGETHER
    wanted = min(max(num_frames / frames_per_second * rate, FEWEST), most)
    count = round(wanted / _TOGETHER) * _TOGETHER
    return [int(place) for place in np.linspace(0, num_frames - 1, count).round()]


def patches_of(frames: NDArray[np.uint8], processor: Any) -> tuple[Tensor, Tensor]:
    """Return patches and grid of an image, or of a video.

    The image processor makes a patch of an image as if of a video of two equal frames. Those of a
    video have one slice of each of two neighbours.

    Args:
        frames: [F, H, W, 3]; one is an image, of more F is even.
        processor: of Qwen2-VL's images.

    Returns:
        [N, 3 * 2 * p * p], and how many patches lie behind, below and beside each other [3].
    """
    made = processor(images=list(frames), return_tensors="pt", input_data_format="channels_last")
    values, grid = made["pixel_values"], made["image_grid_thw"][0]
    if len(frames) == 1:
        return values, grid
    size = processor.patch_size**2
    slices = values.view(len(frames) // _TOGETHER, _TOGETHER, -1, 3, _TOGETHER, size)
    pairs = torch.stack([slices[:, 0, :, :, 0], slices[:, 1, :, :, 1]], dim=-2)
    return pairs.reshape(-1, values.shape[1]), grid * torch.tensor([len(pairs), 1, 1])
