"""Direct Group Preference Optimization (arXiv:2510.08425): matching, weighted by preferences.

The source is that of `digen_core.maths.dgpo`.
"""

from abc import abstractmethod
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
from pydantic import Field

from digen_core.algorithms.base import Steps, check_num_levels
from digen_core.algorithms.forward_process import ForwardProcess

if TYPE_CHECKING:
    from torch import Tensor

    from digen_core.maths.advantages import Scored, Signal
    from digen_core.maths.ddpo import RewardHistory
    from digen_core.maths.replay import ForwardLoss, Noised


class Preferences(ForwardProcess):
    """What DGPO and Diffusion-DPO have: noise levels that are drawn, and margins over the base."""

    needs_margins: ClassVar[bool] = True

    num_levels: int = Field(4, ge=1)
    """Noise levels that an iteration trains, drawn from the first ones of the schedule."""

    trained_fraction: float = Field(0.7, gt=0, le=1)
    """Share of the schedule's noise levels of which they are drawn, from the highest one."""

    shared_noise: bool = True
    """Whether all samples of a group are noised by one noise, or each by its own."""

    @property
    def shares_noise(self) -> bool:
        """Whether the samples of a group are noised alike on the forward process."""
        return self.shared_noise

    def num_trained(self, num_steps: int) -> int:
        """Return the trained noise levels of a sample."""
        return self.num_levels

    def check_steps(self, num_steps: int) -> None:
        """Raise ValueError unless there are as many noise levels to draw from."""
        check_num_levels(self.num_levels, self.trained_fraction, num_steps)

    def steps(self, num_steps: int, iteration: int, generator: np.random.Generator) -> Steps:
        """Return the noise levels that are drawn as trained; no step is noisy."""
        there = int(num_steps * self.trained_fraction)
        drawn = generator.choice(there, size=self.num_levels, replace=False)
        return Steps((), tuple(sorted(int(step) for step in drawn)))

    @abstractmethod
    def compared(self, rewards: "Tensor", margins: "Tensor") -> "Tensor":
        """Return [P, K]: how much higher the implicit reward of the better of two samples is.

        Args:
            rewards: [G] of a group, of which P pairs are compared.
            margins: [G, K] of its samples.
        """


class Dgpo(Preferences):
    """DGPO: matching of good samples and its opposite of bad ones, weighted by the whole group."""

    type: Literal["dgpo"] = "dgpo"

    beta: float = Field(100.0, gt=0)
    """How sharply the group's preference counts."""

    clip_range: float = Field(0.01, gt=0, lt=1)
    """Half-width of the clip of ratios to the policy with which the iteration began."""

    kl_coefficient: float = Field(0.02, ge=0)
    """Weight of the mean squared distance of velocities to the reference policy's."""

    def signal(self, scored: "Scored", history: "RewardHistory") -> "Signal":
        """Return advantages [B, K]: those of samples, times the weight of their group."""
        from digen_core.maths.dgpo import group_weights

        found = super().signal(scored._replace(step_values=None), history)
        assert scored.step_values is not None
        values = found.advantages[:, None] * group_weights(
            found.advantages, scored.step_values, scored.owner, beta=self.beta
        )
        return found._replace(advantages=values)

    def compared(self, rewards: "Tensor", margins: "Tensor") -> "Tensor":
        """Return [P, K] of all pairs of unequal rewards."""
        from digen_core.maths.dgpo import implicit_differences

        return implicit_differences(rewards, margins, beta=self.beta)

    def losses(self, pairs: "Noised") -> "ForwardLoss":
        """Return one loss per pair, [B]."""
        from digen_core.maths.dgpo import preference_loss
        from digen_core.maths.replay import ForwardLoss

        found = preference_loss(
            pairs, clip_range=self.clip_range, reference_coefficient=self.kl_coefficient
        )
        return ForwardLoss(found.per_pair, found.reference, found.surrogate)
