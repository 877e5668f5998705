"""How much moves in a video, as far as it moves and does not flicker.

A displacement field v (pixels per frame) is fitted to each pair of frames as Lucas and Kanade do
(1981): around each pixel v minimises the weighted sum of (I_t + v . grad I)^2, where I is the mean
of both frames and I_t their difference. In closed form, with w the weights and lambda for places
without texture:

    v = -(w * grad I grad I^T + lambda)^-1 (w * grad I I_t)

    magnitude = mean |v| / shorter side
    coherence = 1 - sum (I_t + v . grad I)^2 / sum I_t^2        (1 if nothing changes, at least 0)
    score     = min(magnitude / enough, 1) coherence

averaged over the pairs. A still video has the score 0. What changes without moving (flicker, noise,
cuts) is not explained by any v: its coherence is low. More motion than ``enough`` pays nothing. A
moving camera counts as motion. Frames are made small and smooth first, so that v is a few pixels.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.ndimage import gaussian_filter
from torch import Tensor
from torch.nn import functional

from digen_core.reward_config import MotionConfig
from digen_core.rewards.scoring import PermanentError

SHORTER_SIDE: Final = 64
"""Pixels of the frames that are compared; smaller ones keep their size."""

_LUMA: Final = (0.299, 0.587, 0.114)  # ITU-R BT.601
_SMOOTHING: Final = 1.5  # pixels
_WINDOW: Final = 4.0  # pixels: standard deviation of w
_LAMBDA: Final = 1e-4  # squared gradient of luma: edges below 0.01 a pixel say little
_TINY: Final = 1e-12


class Motion:
    """Scores videos by their coherent motion."""

    def __init__(self, config: MotionConfig, device: torch.device) -> None:
        """Take the settings.

        Args:
            config: of the reward.
            device: unused; frames are compared on the CPU.
        """
        self._enough = config.enough

    def __call__(self, videos: Tensor, prompts: Sequence[str]) -> dict[str, Tensor]:
        """Score videos [B, F, 3, H, W]: float64 [B] "score", "magnitude" and "coherence".

        Raises:
            PermanentError: the videos have one frame.
        """
        check_frames(videos)
        found = np.array([motion_of(_small_luma(video)) for video in videos])  # [B, F - 1, 2]
        magnitude, coherence = found[..., 0], found[..., 1]
        score = np.minimum(magnitude / self._enough, 1) * coherence
        columns = {"score": score, "magnitude": magnitude, "coherence": coherence}
        return {name: torch.from_numpy(values.mean(axis=1)) for name, values in columns.items()}


def check_frames(videos: Tensor) -> None:
    """Refuse videos [B, F, 3, H, W] of one frame.

    Raises:
        PermanentError: they are.
    """
    if videos.shape[1] < 2:
        raise PermanentError("a video of one frame has no motion; use more frames")


def motion_of(frames: NDArray[np.float64]) -> list[tuple[float, float]]:
    """Return magnitude and coherence of each pair of neighbours in grey frames [F, h, w]."""
    smooth = gaussian_filter(frames, (0, _SMOOTHING, _SMOOTHING))
    return [_of_pair(*pair) for pair in pairwise(smooth)]


def _of_pair(first: NDArray[Any], second: NDArray[Any]) -> tuple[float, float]:
    """Return magnitude and coherence of the motion between two frames [h, w]."""
    change = second - first
    dy, dx = np.gradient((first + second) / 2)

    def around(values: NDArray[Any]) -> NDArray[Any]:
        return np.asarray(gaussian_filter(values, _WINDOW))

    xx, yy, xy = around(dx * dx) + _LAMBDA, around(dy * dy) + _LAMBDA, around(dx * dy)
    xt, yt = around(dx * change), around(dy * change)
    determinant = xx * yy - xy * xy  # >= lambda^2: w * grad grad^T has no negative eigenvalue
    vx, vy = (xy * yt - yy * xt) / determinant, (xy * xt - xx * yt) / determinant
    magnitude = np.hypot(vx, vy).mean() / min(first.shape)
    total, rest = (change**2).sum(), ((change + vx * dx + vy * dy) ** 2).sum()
    coherence = 1.0 if total < _TINY else max(0.0, 1 - rest / total)
    return float(magnitude), float(coherence)


def _small_luma(video: Tensor) -> NDArray[np.float64]:
    """Return a video [F, 3, H, W] as float64 grey frames [F, h, w]."""
    weights = torch.tensor(_LUMA, dtype=torch.float64, device=video.device)
    luma = (video.double() * weights[:, None, None]).sum(dim=1, keepdim=True)
    scale = min(1.0, SHORTER_SIDE / min(video.shape[-2:]))
    size = [max(1, round(side * scale)) for side in video.shape[-2:]]
    small = functional.interpolate(luma, size=size, mode="area")
    grey: NDArray[np.float64] = small.squeeze(1).cpu().numpy()
    return grey
