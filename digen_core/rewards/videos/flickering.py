"""Do the pixels of a video flicker? VBench's temporal flickering.

    score = 1 - mean |x_t - x_{t-1}| / 255

over the frames t = 2..F, the pixels and their channels, of 8 bits. Huang et al. 2024
(https://arxiv.org/abs/2311.17982). It takes motion for flicker, and a still video scores 1: weigh
it together with ``motion``.
"""

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

from digen_core.rewards.pixels import in_steps
from digen_core.rewards.videos.motion import check_frames


def temporal_flickering(videos: Tensor, prompts: Sequence[str]) -> Tensor:
    """Score videos [B, F, 3, H, W] in [0, 1]: float64 [B], in [0, 1].

    Raises:
        PermanentError: the videos have one frame only.
    """
    check_frames(videos, 2)
    return torch.stack([1 - _change(in_steps(video.float())) / 255 for video in videos])


def _change(frames: Tensor) -> Tensor:
    """Return the mean absolute difference between neighbours of frames [F, 3, H, W]."""
    changes = [(b - a).abs().mean(dtype=torch.float64) for a, b in pairwise(frames)]
    return torch.stack(changes).mean()
