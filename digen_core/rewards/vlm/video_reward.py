"""VideoReward: quality and motion of a video, and how well it suits its prompt.

Liu et al. 2025 (https://arxiv.org/abs/2501.13918), the model that VideoAlign publishes: a Qwen2-VL
of 2 billion parameters reads one number at each of three marks. Normalised by the means and
deviations that come with it, their sum is the score.
"""

from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor, nn

from digen_core.config.rewards.reward_models import VideoRewardConfig
from digen_core.maths.tensors import TORCH_DTYPES
from digen_core.rewards.checkpoints import published_folder
from digen_core.rewards.pixels import as_pixels
from digen_core.rewards.videos.motion import check_frames
from digen_core.rewards.vlm.frames import seen_frames
from digen_core.rewards.vlm.model import HeadedVlm, Sight
from digen_core.rewards.vlm.settings import SETTINGS, checkpoint_in, read_settings
from digen_core.rewards.vlm.weights import read_adapted

_MIN_PIXELS: Final = 128 * 28 * 28


class VideoReward:
    """Scores videos by the dimensions that are to be summed."""

    def __init__(self, config: VideoRewardConfig, device: torch.device) -> None:
        """Load the model.

        Raises:
            ConfigError: something of it cannot be loaded.
        """
        files = [SETTINGS, "checkpoint-*/model.pth"]
        folder = published_folder(config.path, config.revision, files, "VideoReward")
        settings, path = read_settings(folder), checkpoint_in(folder)
        self._rate, self._frames_per_second = settings.frames.fps, config.frames_per_second
        self._norms, self._dimensions = settings.norms, config.dimensions
        sight = Sight("video", _MIN_PIXELS, settings.frames.max_frame_pixels)
        self._model = HeadedVlm(config, sight, device)
        dtype = TORCH_DTYPES[config.dtype]
        weights = read_adapted(path, settings.adapters.scale, dtype)
        with torch.device("meta"):
            head = nn.Linear(self._model.width, 1, bias=False)
        self._model.load(weights, head, path)

    def __call__(self, videos: Tensor, prompts: Sequence[str]) -> dict[str, Tensor]:
        """Score videos [B, F, 3, H, W] in [0, 1].

        Returns:
            float32 [B]: ``score``, and what it is a sum of: ``vq``, ``mq``, ``ta``.

        Raises:
            PermanentError: the videos have one frame.
        """
        check_frames(videos, 2)
        seen = seen_frames(videos.shape[1], self._frames_per_second, self._rate)
        read = self._model([as_pixels(video[seen]) for video in videos], prompts)[..., 0]
        norms = self._norms
        parts = {
            "vq": (read[:, 0] - norms.vq_mean) / norms.vq_std,
            "mq": (read[:, 1] - norms.mq_mean) / norms.mq_std,
            "ta": (read[:, 2] - norms.ta_mean) / norms.ta_std,
        }
        score = torch.stack([parts[name] for name in self._dimensions]).sum(dim=0)
        return {"score": score, **parts}
