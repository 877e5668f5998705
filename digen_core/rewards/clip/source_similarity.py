"""How much an edit keeps of its source image: the cosine of their CLIP embeddings.

It is the image-to-image similarity of edits' benchmarks (CLIP-I of MagicBrush, arXiv:2306.10012).
An image that is left as it was scores 1: weigh it together with a reward that asks for the edit.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from digen_core.config.rewards.clip import SourceSimilarityConfig
from digen_core.rewards.clip.clip import Clip


class SourceSimilarity:
    """Scores edits by how alike they are to what they were made of."""

    def __init__(self, config: SourceSimilarityConfig, device: torch.device) -> None:
        self._clip = Clip(config, device)

    def __call__(
        self, images: Tensor, prompts: Sequence[str], sources: Tensor | None = None
    ) -> Tensor:
        """Score images [B, 3, H, W] by sources [B, 3, H, W]: float32 [B].

        Raises:
            ValueError: there are no sources.
        """
        if sources is None:
            raise ValueError("it compares edits with source images, which the prompts have not")
        first, again = torch.unique(sources, dim=0, return_inverse=True)
        embedded = self._clip.embed_images(first)[again]
        scores: Tensor = (self._clip.embed_images(images) * embedded).sum(dim=-1)
        return scores
