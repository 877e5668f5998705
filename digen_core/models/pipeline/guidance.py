"""Guidance: forward passes with and without, and which rows of a batch have which scale.

A schedule (``model.guidance_schedule``) may leave noise levels without classifier-free guidance, as
a limited interval does (arXiv:2404.07724). Levels are compared as Python's numbers, rounded to
float32, in rollout and training alike.

Axes: B samples.
"""

from abc import abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from digen_core.config.model import ModelConfig
from digen_core.models.experts import in_order
from digen_core.models.pipeline.conditions import guided_halves, rows_of, without_negatives
from digen_core.models.pipeline.encoder import PromptEncoder
from digen_core.models.policy import Condition


class GuidedVelocities(PromptEncoder):
    """A policy's velocities, of forward passes with and without guidance."""

    latent_dtype: torch.dtype

    def part_at(self, sigma: float) -> int:
        """Return which part of a batch a noise level belongs to, whose rows are computed together.

        Rows of one scale of guidance are a part, if guidance takes a second half.
        """
        if not self.guided:
            return 0
        return self.config.num_levels_above(sigma)

    def velocity(self, x: Tensor, sigma: Tensor, condition: Condition) -> Tensor:
        """Map latents [B, ...] at noise levels [B] to velocities [B, ...] in ``latent_dtype``.

        Classifier-free guidance is one forward pass of 2 B rows, and the result float32 or better.
        Rows with another scale are a pass of their own. In gangs whose members compute together all
        rows have one, which `tasks.train` sees to.
        """
        # One conversion for rollout and training: half-precision noise levels round differently.
        sigma = sigma.to(self.device).expand(len(x))
        if not self.guided:
            return self.predicted(x, sigma, condition)
        parts = _rows_by_scale(_scales_of(self.config, sigma, self.guidance_scale))
        if parts[0][1] is None:
            return self._guided(x, sigma, condition, parts[0][0])
        places = [(scale, rows.to(self.device)) for scale, rows in parts if rows is not None]
        velocities = [
            self._guided(x[rows], sigma[rows], rows_of(condition, rows), scale)
            for scale, rows in places
        ]
        return in_order(velocities, [rows for _, rows in places])

    @property
    def num_passes(self) -> int:
        """The most forward passes that a velocity takes: 2 with classifier-free guidance."""
        return 1 + (self.guided and max(self.config.guidance_scales) > self.guides_above)

    @abstractmethod
    def predicted(self, x: Tensor, sigma: Tensor, condition: Condition) -> Tensor:
        """Return one forward pass in ``latent_dtype``, whoever holds the blocks."""

    @property
    def guidance_scale(self) -> float:
        """The scale where no schedule says otherwise."""
        return self.config.guidance_scale

    def guide(self, positive: Tensor, negative: Tensor, scale: float) -> Tensor:
        """Return the guided velocity [B, ...]: w of Imagen (arXiv:2205.11487), eq. 2."""
        return negative + scale * (positive - negative)

    def embedded_guidance(self, sigma: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        """Return the scales [B] that a model distilled with guidance is shown at noise levels."""
        if not self.config.guidance_schedule:
            return torch.full([len(sigma)], self.guidance_scale, dtype=dtype, device=self.device)
        scales = _scales_of(self.config, sigma, self.guidance_scale)
        return torch.tensor(scales, dtype=dtype, device=self.device)

    def _guided(self, x: Tensor, sigma: Tensor, condition: Condition, scale: float) -> Tensor:
        """Return the velocities [B, ...] of rows with one scale of guidance."""
        if scale <= self.guides_above:
            return self.predicted(x, sigma, without_negatives(condition))
        both = guided_halves(condition)
        velocity = self.predicted(torch.cat([x, x]), torch.cat([sigma, sigma]), both)
        negative, positive = velocity.chunk(2)
        return self.guide(positive, negative, scale)


def _scales_of(config: ModelConfig, sigma: Tensor, otherwise: float) -> list[float]:
    """Return the scale of each row at noise levels [B].

    Where there are no numbers, as where sizes are counted, it is the largest: it costs the most.

    Args:
        config: with the schedule.
        sigma: [B] noise levels.
        otherwise: the scale above the schedule's first level.
    """
    if not config.guidance_schedule:
        return [otherwise] * len(sigma)
    if sigma.is_meta or isinstance(sigma, FakeTensor):
        return [max(otherwise, *config.guidance_scales)] * len(sigma)
    found = [config.guidance_at(level) for level in sigma.tolist()]
    return [otherwise if scale is None else scale for scale in found]


def _rows_by_scale(scales: Sequence[float]) -> list[tuple[float, Tensor | None]]:
    """Return each scale and the rows that have it; None: all rows."""
    different = list(dict.fromkeys(scales))
    if len(different) == 1:
        return [(different[0], None)]
    every = torch.tensor(scales, dtype=torch.float64)
    return [(scale, (every == scale).nonzero()[:, 0]) for scale in different]
