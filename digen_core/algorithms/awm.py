"""Advantage Weighted Matching (arXiv:2509.25050): ratios of flow-matching losses, on clean latents.

The source is that of `digen_core.maths.awm`.
"""

from typing import TYPE_CHECKING, Literal

import numpy as np
from pydantic import Field

from digen_core.algorithms.base import Steps
from digen_core.algorithms.forward_process import ForwardProcess
from digen_core.maths.names import MatchingWeight
from digen_core.maths.windows import stratified_steps

if TYPE_CHECKING:
    from digen_core.maths.replay import ForwardLoss, Noised


class Awm(ForwardProcess):
    """AWM: the clipped surrogate, with the flow-matching loss of clean latents for a log-prob."""

    type: Literal["awm"] = "awm"

    weighting: MatchingWeight = "ghuber"
    """Of the flow-matching loss: none (uniform), by the noise level (t) or its square (t2), its
    root by the noise level (huber), or its power (ghuber)."""

    huber_power: float = Field(0.25, gt=0, le=1)
    """Power of the loss with the weighting ghuber."""

    clip_range: float = Field(1.0, gt=0, le=1)
    """Half-width of the importance-ratio clip."""

    advantage_weight: float = Field(1.0, gt=0)
    """What an advantage of max_advantage counts; the others in proportion."""

    start_coefficient: float = Field(1.0, ge=0)
    """Weight of the mean squared distance of velocities to those of what generated when the
    iteration began."""

    kl_coefficient: float = Field(0.003, ge=0)
    """Weight of the mean squared distance of velocities to the reference policy's."""

    num_levels: int = Field(6, ge=1)
    """Noise levels of the schedule that a sample trains, one drawn from each of as many equal parts
    of it."""

    own_levels: bool = False
    """Whether they are drawn for each sample, and anew in each epoch, where the published code
    draws them for each batch of two; otherwise once for an iteration, for all of it."""

    first_level: int = Field(1, ge=0)
    """First noise level that may be drawn; 0 is pure noise."""

    trained_fraction: float = Field(0.9, gt=0, le=1)
    """Share of the noise levels of which they are drawn, from the highest one."""

    @property
    def fewest_steps(self) -> int:
        """Two more than the noise levels that are trained."""
        return self.num_levels + 2

    def num_trained(self, num_steps: int) -> int:
        """Return the trained noise levels of a sample."""
        return self.num_levels

    def check_steps(self, num_steps: int) -> None:
        """Raise ValueError unless there are as many noise levels to draw from."""
        last = int(num_steps * self.trained_fraction)
        if last - self.first_level < self.num_levels:
            raise ValueError(
                f"algorithm.trained_fraction ({self.trained_fraction:g}) of rollout.num_steps "
                f"({num_steps}) from algorithm.first_level ({self.first_level}) on is "
                f"{max(last - self.first_level, 0)} noise levels, fewer than "
                f"algorithm.num_levels ({self.num_levels}); lower that one."
            )

    def steps(self, num_steps: int, iteration: int, generator: np.random.Generator) -> Steps:
        """Return one noise level of each part of the schedule as trained; no step is noisy.

        Where each sample has its own, all of the parts are trained by some.
        """
        last = int(num_steps * self.trained_fraction)
        if self.own_levels:
            return Steps((), tuple(range(self.first_level, last)))
        return Steps((), stratified_steps(self.first_level, last, self.num_levels, generator))

    def own_steps(
        self, num_samples: int, num_steps: int, generator: np.random.Generator
    ) -> tuple[tuple[int, ...], ...]:
        """Return the levels that are drawn for each sample; empty where all train the same."""
        if not self.own_levels:
            return ()
        last = int(num_steps * self.trained_fraction)
        return tuple(
            stratified_steps(self.first_level, last, self.num_levels, generator)
            for _ in range(num_samples)
        )

    def losses(self, pairs: "Noised") -> "ForwardLoss":
        """Return one loss per pair, [B]."""
        from digen_core.maths.awm import awm_loss
        from digen_core.maths.replay import ForwardLoss

        factor = self.advantage_weight / self.max_advantage
        found = awm_loss(
            pairs._replace(advantage=factor * pairs.advantage),
            weighting=self.weighting,
            power=self.huber_power,
            clip_range=self.clip_range,
            start_coefficient=self.start_coefficient,
            reference_coefficient=self.kl_coefficient,
        )
        return ForwardLoss(found.per_pair, found.reference, found.surrogate)
