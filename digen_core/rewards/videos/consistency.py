"""Do the frames of a video show the same thing? VBench's consistencies, on features of frames.

    score = mean over t = 2..F of (max(cos(e_1, e_t), 0) + max(cos(e_{t-1}, e_t), 0)) / 2

Huang et al. 2024 (https://arxiv.org/abs/2311.17982): its background consistency on embeddings of
CLIP, its subject consistency on features of DINO. A still video scores 1: weigh them together with
``motion``.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from digen_core.config.rewards.clip import ConsistencyConfig, SubjectConsistencyConfig
from digen_core.rewards.clip.clip import Clip
from digen_core.rewards.videos.dino import Dino
from digen_core.rewards.videos.motion import check_frames


class _Likeness:
    """Scores videos by how alike features of their frames are."""

    def __init__(self, features_of: Callable[[Tensor], Tensor]) -> None:
        """Score by what makes features [N, D] of length 1 of frames [N, 3, H, W]."""
        self._features_of = features_of

    def __call__(self, videos: Tensor, prompts: Sequence[str]) -> Tensor:
        """Score videos [B, F, 3, H, W]: float32 [B].

        Raises:
            PermanentError: the videos have one frame only.
        """
        check_frames(videos, 2)
        features = self._features_of(videos.flatten(0, 1))
        frames = features.reshape(*videos.shape[:2], -1)  # [B, F, D]
        to_first = (frames[:, :1] * frames[:, 1:]).sum(dim=-1)
        to_previous = (frames[:, :-1] * frames[:, 1:]).sum(dim=-1)
        scores: Tensor = (to_first.clamp(min=0) + to_previous.clamp(min=0)).mean(dim=1) / 2
        return scores


class Consistency(_Likeness):
    """Scores videos by how alike their frames are to CLIP."""

    def __init__(self, config: ConsistencyConfig, device: torch.device) -> None:
        super().__init__(Clip(config, device).embed_images)


class SubjectConsistency(_Likeness):
    """Scores videos by how alike their frames are to DINO."""

    def __init__(self, config: SubjectConsistencyConfig, device: torch.device) -> None:
        super().__init__(Dino(config, device).embed)
