"""The reward ``motion``: movement in a video, as far as it is no flicker.

Each frame is made small, smooth, and of mean 0 and variance 1, so that changes of brightness and
contrast are none. A displacement field v (pixels per frame) is fitted to each pair of neighbours as
Lucas and Kanade do (1981): around each pixel v minimises the weighted sum of (I_t + v . grad I)^2,
where I is the mean of both frames and I_t their difference. In closed form, with w the weights and
lambda for places without texture:

    v = -(w * grad I grad I^T + lambda)^-1 (w * grad I I_t)

    magnitude   = mean |v| / shorter side, of a pair
    coherence   = 1 - sum (I_t + v . grad I)^2 / sum I_t^2, of a pair, at least 0
    persistence = sum_t v_t . v_{t+1} / sum_t (|v_t|^2 + |v_{t+1}|^2) / 2, at least 0
    score       = persistence * mean over pairs of min(magnitude / enough, 1) coherence

A still video has the score 0. What changes without moving (noise, flicker, cuts) is explained badly
by any v, and its v of one pair says nothing about that of the next: coherence and persistence are
low. More motion than ``enough`` pays nothing. A moving camera counts as motion.
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

from digen_core.config.rewards.pixels import MotionConfig
from digen_core.rewards.attempts import PermanentError

SHORTER_SIDE: Final = 64
"""Pixels of the frames that are compared; smaller ones keep their size."""

_LUMA: Final = (0.299, 0.587, 0.114)  # ITU-R BT.601
_SMOOTHING: Final = 1.5  # pixels
_WINDOW: Final = 4.0  # pixels: standard deviation of w
_LAMBDA: Final = 1e-3  # squared gradient: edges below 0.03 deviations a pixel say little
_FLAT: Final = 2 / 255  # a frame whose luma varies less than this has nothing to be seen


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
        """Score videos [B, F, 3, H, W]: float64 [B] for "score" and what it is made of.

        Raises:
            PermanentError: the videos have fewer than three frames.
        """
        check_frames(videos, 3)
        rows = [self._score(_small_luma(video)) for video in videos]
        return {name: torch.tensor([row[name] for row in rows]).double() for name in rows[0]}

    def _score(self, frames: NDArray[np.float64]) -> dict[str, float]:
        """Score a video of frames [F, h, w]."""
        pairs = [motion_between(*pair) for pair in pairwise(_standardized(frames))]
        fields = np.array([field for field, _ in pairs])  # [F - 1, 2, h, w]
        coherence = np.array([share for _, share in pairs])
        magnitude = np.hypot(fields[:, 0], fields[:, 1]).mean(axis=(1, 2)) / min(frames.shape[1:])
        persistence = _persistence(fields)
        score = persistence * (np.minimum(magnitude / self._enough, 1) * coherence).mean()
        return {
            "score": float(score),
            "magnitude": float(magnitude.mean()),
            "coherence": float(coherence.mean()),
            "persistence": persistence,
        }


def check_frames(videos: Tensor, at_least: int) -> None:
    """Refuse videos [B, F, 3, H, W] of too few frames.

    Raises:
        PermanentError: they are.
    """
    if videos.shape[1] < at_least:
        raise PermanentError(
            f"videos of {videos.shape[1]} frames cannot be judged; use {at_least} or more"
        )


def motion_between(first: NDArray[Any], second: NDArray[Any]) -> tuple[NDArray[Any], float]:
    """Return the displacements [2, h, w] (x, y) between two frames [h, w], and their coherence."""
    change = second - first
    dy, dx = np.gradient((first + second) / 2)

    def around(values: NDArray[Any]) -> NDArray[Any]:
        return np.asarray(gaussian_filter(values, _WINDOW))

    xx, yy, xy = around(dx * dx) + _LAMBDA, around(dy * dy) + _LAMBDA, around(dx * dy)
    xt, yt = around(dx * change), around(dy * change)
    determinant = xx * yy - xy * xy  # >= lambda^2: w * grad grad^T has no negative eigenvalue
    field = np.array([xy * yt - yy * xt, xy * xt - xx * yt]) / determinant
    total, rest = (change**2).sum(), ((change + field[0] * dx + field[1] * dy) ** 2).sum()
    return field, float(max(0.0, 1 - rest / total)) if total else 1.0


def _persistence(fields: NDArray[np.float64]) -> float:
    """Return how alike the fields [F - 1, 2, h, w] of neighbouring pairs are, in [0, 1]."""
    energy = (fields[:-1] ** 2 + fields[1:] ** 2).sum() / 2
    return float(max(0.0, (fields[:-1] * fields[1:]).sum() / energy)) if energy else 1.0


def _standardized(frames: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return frames [F, h, w] smooth, with mean 0 and variance 1; flat ones become 0."""
    smooth = gaussian_filter(frames, (0, _SMOOTHING, _SMOOTHING))
    centred = smooth - smooth.mean(axis=(1, 2), keepdims=True)
    deviation = centred.std(axis=(1, 2), keepdims=True)
    return np.asarray(centred / np.maximum(deviation, _FLAT))


def _small_luma(video: Tensor) -> NDArray[np.float64]:
    """Return a video [F, 3, H, W] as float64 grey frames [F, h, w]."""
    weights = torch.tensor(_LUMA, dtype=torch.float64, device=video.device)
    luma = (video.double() * weights[:, None, None]).sum(dim=1, keepdim=True)
    scale = min(1.0, SHORTER_SIDE / min(video.shape[-2:]))
    size = [max(1, round(side * scale)) for side in video.shape[-2:]]
    small = functional.interpolate(luma, size=size, mode="area")
    grey: NDArray[np.float64] = small.squeeze(1).cpu().numpy()
    return grey
