"""Pairs under the policy being trained: what the losses of all algorithms are functions of.

Axes: B pairs (sample, step), then latent axes.
"""

from typing import NamedTuple, Self

from torch import Tensor

from digen_core.maths.flow_sde import Transition
from digen_core.maths.kl import transition_kl


class Replay(NamedTuple):
    """B transitions under the policy being trained and under the one that sampled."""

    transition: Transition  # carries gradient
    logprob: Tensor  # [B], carries gradient
    behaviour_mean: Tensor | None  # [B, ...], for algorithms that ask for it (needs_noise)
    behaviour_logprob: Tensor  # [B]
    advantage: Tensor  # [B]
    sigma: Tensor  # [B]
    sigma_next: Tensor  # [B]
    sigma_max: float

    @property
    def divergence(self) -> Tensor:
        """[B] of the current transition from the behaviour's, in nats per element."""
        assert self.behaviour_mean is not None
        return transition_kl(self.transition.mean, self.behaviour_mean, self.transition.std)

    def of_the_current(self) -> Self:
        """Return the same pairs as if the policy being trained had sampled them itself."""
        return self._replace(
            behaviour_logprob=self.logprob.detach(), behaviour_mean=self.transition.mean.detach()
        )


class Noised(NamedTuple):
    """B clean latents at a noise level each, and the velocities of three policies there."""

    velocity: Tensor  # [B, ...] of the policy being trained; carries gradient
    old_velocity: Tensor  # [B, ...] of the policy that sampled
    reference_velocity: Tensor | None  # [B, ...] of the reference policy, where it is asked for
    x: Tensor  # [B, ...] noised
    x_0: Tensor  # [B, ...] clean
    sigma: Tensor  # [B]
    advantage: Tensor  # [B]
