"""CLIPScore: 2.5 max(cos(image, prompt), 0); or the cosine as it is.

Hessel et al. 2021 (https://arxiv.org/abs/2104.08718). FlowGRPO's CLIP score is
logit_scale cos / 30, with logit_scale 100: the same, 4/3 times as large, where the cosine is > 0.
"""

from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor

from digen_core.config.rewards.clip import ClipScoreConfig
from digen_core.data.kinds import text_at
from digen_core.data.prompts import Metadata
from digen_core.rewards.attempts import PermanentError
from digen_core.rewards.clip.clip import Clip

WEIGHT: Final = 2.5


class ClipScore:
    """Scores the agreement of images and prompts, or other texts."""

    def __init__(self, config: ClipScoreConfig, device: torch.device) -> None:
        self._clip, self._config = Clip(config, device), config

    def __call__(
        self, images: Tensor, prompts: Sequence[str], metadata: Sequence[Metadata] = ()
    ) -> Tensor:
        """Score images [B, 3, H, W]: float32 [B].

        Raises:
            PermanentError: a row has something else in the place of the text.
        """
        texts = self._texts(prompts, metadata)
        cosines = self._clip.similarities(images, texts)
        return cosines if self._config.counts == "cosine" else WEIGHT * cosines.clamp(min=0)

    def _texts(self, prompts: Sequence[str], metadata: Sequence[Metadata]) -> Sequence[str]:
        place = self._config.text_column
        if place is None:
            return prompts
        try:
            found = [text_at(row, place) for row in metadata]
        except ValueError as error:
            raise PermanentError(str(error)) from error
        return [text or prompt for text, prompt in zip(found, prompts, strict=True)]
