"""BLIP-VQA: how probable it is that the image shows each noun phrase of its prompt.

T2I-CompBench (https://arxiv.org/abs/2307.06350): a BLIP that answers questions is asked each phrase
with a question mark, its answer is worth p(yes) / (p(yes) + p(no)) of the first word, and the score
is the product over the phrases; 1 without any.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from digen_core.config.rewards.verifiers import BlipVqaConfig
from digen_core.data.prompts import Metadata
from digen_core.rewards.attempts import PermanentError
from digen_core.rewards.blip.answers import BlipAnswers
from digen_core.rewards.blip.phrases import questions_of


class BlipVqa:
    """Scores images by the phrases that they show."""

    def __init__(self, config: BlipVqaConfig, device: torch.device) -> None:
        """Load model and processor.

        Raises:
            ConfigError: one of them cannot be loaded, or knows neither yes nor no.
        """
        self._blip = BlipAnswers(config, device)

    def __call__(
        self, images: Tensor, prompts: Sequence[str], metadata: Sequence[Metadata]
    ) -> Tensor:
        """Score images [B, 3, H, W]: float64 [B], in [0, 1].

        Raises:
            PermanentError: a prompt's row has no phrases.
        """
        answers = self._blip.probabilities(images, [_asked(row) for row in metadata])
        return torch.tensor([math.prod(own) for own in answers], dtype=torch.float64)


def _asked(row: Metadata) -> list[str]:
    try:
        return questions_of(row)
    except ValueError as error:
        raise PermanentError(str(error)) from error
