"""What was asked of the model for each sample: prompts, and what their rows say and show."""

from collections.abc import Sequence
from copy import deepcopy
from typing import NamedTuple

import torch
from torch import Tensor

from digen_core.config.size import Size
from digen_core.data.images import SourceImage
from digen_core.data.prompts import Metadata, Prompt


class Asked(NamedTuple):
    """What was asked of the model, for each of B samples."""

    prompts: Sequence[str]
    metadata: Sequence[Metadata]
    sources: Tensor | None = None
    """[B, 3, H, W] in [0, 1], where prompts come with images: the first of each."""

    more_sources: Sequence[Tensor] | None = None
    """The others of each, B of [n, 3, H, W], if one has several."""

    @classmethod
    def of(cls, prompts: Sequence[Prompt], size: Size, device: torch.device) -> "Asked":
        """Return what is asked for samples of a size, by the prompt of each.

        Raises:
            UserError: a source image is gone, changed or damaged.
        """
        texts, rows = [prompt.text for prompt in prompts], [prompt.metadata for prompt in prompts]
        return cls(texts, rows, *_sources(prompts, size, device))

    def copied(self) -> "Asked":
        """Return the same as objects of their own."""
        sources, more = self.sources, self.more_sources
        return Asked(
            list(self.prompts),
            [deepcopy(dict(row)) for row in self.metadata],
            None if sources is None else sources.clone(),
            None if more is None else [own.clone() for own in more],
        )

    def repeated(self, times: int) -> "Asked":
        """Return each one's several times in a row: for the frames of its sample."""
        sources, more = self.sources, self.more_sources
        return Asked(
            [prompt for prompt in self.prompts for _ in range(times)],
            [row for row in self.metadata for _ in range(times)],
            None if sources is None else sources.repeat_interleave(times, dim=0),
            None if more is None else [own for own in more for _ in range(times)],
        )


def for_samples(prompts: Sequence[Prompt], times: int) -> list[Prompt]:
    """Return the prompt of each sample, where each prompt has that many in a row."""
    return [prompt for prompt in prompts for _ in range(times)]


def _sources(
    prompts: Sequence[Prompt], size: Size, device: torch.device
) -> tuple[Tensor | None, list[Tensor] | None]:
    """Return source images in [0, 1] as large as samples of a size, on a device.

    They are the first ones, [B, 3, H, W], and the others of each prompt, [n, 3, H, W], if one has
    several.
    """
    if not all(prompt.images for prompt in prompts):
        return None, None
    height, width, _ = size
    every = {image for prompt in prompts for image in prompt.images}
    pixels = {image: torch.from_numpy(image.pixels(height, width).copy()) for image in every}

    def shown(images: Sequence[SourceImage]) -> Tensor:
        if not images:
            return torch.empty((0, 3, height, width), device=device)
        stacked = torch.stack([pixels[image] for image in images])
        return stacked.movedim(-1, 1).to(device, torch.float32) / 255

    first = shown([prompt.images[0] for prompt in prompts])
    if all(len(prompt.images) == 1 for prompt in prompts):
        return first, None
    return first, [shown(prompt.images[1:]) for prompt in prompts]
