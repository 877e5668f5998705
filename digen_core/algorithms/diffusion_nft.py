"""DiffusionNFT (arXiv:2509.16117): contrast good and bad samples on the forward process."""

from typing import TYPE_CHECKING, Literal

import numpy as np
from pydantic import Field

from digen_core.algorithms.base import Steps, check_fraction, check_num_levels
from digen_core.algorithms.forward_process import ForwardProcess
from digen_core.maths.names import AdvantageMode
from digen_core.maths.windows import random_trained_steps, stratified_steps

if TYPE_CHECKING:
    from digen_core.maths.replay import ForwardLoss, Noised


class DiffusionNft(ForwardProcess):
    """DiffusionNFT: contrasts good and bad samples on the forward process, without log-probs."""

    type: Literal["diffusion_nft"] = "diffusion_nft"

    beta: float = Field(1.0, gt=0)
    """Distance of the positive and the negative branch from the policy that sampled."""

    advantage_mode: AdvantageMode = "all"
    """Which advantages count."""

    kl_coefficient: float = Field(1e-4, ge=0)
    """Weight of the mean squared distance of velocities to the reference policy's."""

    trained_fraction: float = Field(0.99, gt=0, le=1)
    """Share of the schedule's noise levels that each sample trains, or of which num_levels are
    drawn, from the highest one."""

    num_levels: int | None = Field(None, ge=1)
    """Noise levels that a sample trains, one drawn from each of as many equal parts of the share,
    as in Flow-Factory; null: as many as the share has."""

    own_levels: bool = False
    """Whether each sample trains levels of its own, anew in each epoch, as published: num_levels of
    the share; where that is null, as many as the share has of all of the schedule. Otherwise all
    train those drawn for the iteration, or the first ones, from the highest one."""

    def num_trained(self, num_steps: int) -> int:
        """Return the trained noise levels of a sample."""
        return self._share(num_steps) if self.num_levels is None else self.num_levels

    def check_steps(self, num_steps: int) -> None:
        """Raise ValueError unless at least one noise level is trained, or as many as are drawn."""
        check_fraction(self.trained_fraction, self._share(num_steps), num_steps)
        check_num_levels(self.num_trained(num_steps), self.trained_fraction, num_steps)

    def steps(self, num_steps: int, iteration: int, generator: np.random.Generator) -> Steps:
        """Return the first noise levels of the schedule, or those drawn, as trained; none is noisy.

        Where each sample has its own, they are all of which these are drawn.
        """
        share = self._share(num_steps)
        if self.num_levels is None:
            return Steps((), tuple(range(num_steps if self.own_levels else share)))
        if self.own_levels:
            return Steps((), tuple(range(share)))
        return Steps((), stratified_steps(0, share, self.num_levels, generator))

    def own_steps(
        self, num_samples: int, num_steps: int, generator: np.random.Generator
    ) -> tuple[tuple[int, ...], ...]:
        """Return the levels that are drawn for each sample; empty where all train the same."""
        if not self.own_levels:
            return ()
        if self.num_levels is not None:
            parts = 0, self._share(num_steps), self.num_levels
            return tuple(stratified_steps(*parts, generator) for _ in range(num_samples))
        trained = self.num_trained(num_steps)
        drawn = random_trained_steps(num_samples, num_steps, trained, generator)
        return tuple(tuple(int(level) for level in own) for own in drawn)

    def _share(self, num_steps: int) -> int:
        """Return how many noise levels of the schedule the share has."""
        return int(num_steps * self.trained_fraction)

    def losses(self, pairs: "Noised") -> "ForwardLoss":
        """Return one loss per pair, [B]."""
        from digen_core.maths.diffusion_nft import nft_loss, optimality
        from digen_core.maths.replay import ForwardLoss

        bound = self.max_advantage
        found = nft_loss(
            pairs.velocity,
            pairs.start_velocity,
            pairs.reference_velocity,
            pairs.x,
            pairs.x_0,
            pairs.sigma,
            optimality(pairs.advantage, max_advantage=bound, mode=self.advantage_mode),
            beta=self.beta,
            max_advantage=bound,
            reference_coefficient=self.kl_coefficient,
        )
        return ForwardLoss(found.per_pair, found.reference)
