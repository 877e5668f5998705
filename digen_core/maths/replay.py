"""Pairs under the policy being trained: what the losses of all algorithms are functions of.

Axes: B pairs (sample, step), then latent axes.
"""

from typing import NamedTuple, Self

from torch import Tensor

from digen_core.maths.flow_sde import Transition
from digen_core.maths.grpo import SurrogateLoss
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
    proximal_mean: Tensor | None = None  # [B, ...] of the policy with which the iteration began
    proximal_logprob: Tensor | None = None  # [B] likewise; None: the one being trained is it

    @property
    def divergence(self) -> Tensor:
        """[B] of the current transition from the behaviour's, in nats per element."""
        assert self.behaviour_mean is not None
        return transition_kl(self.transition.mean, self.behaviour_mean, self.transition.std)

    def of_the_proximal(self) -> Self:
        """Return the same pairs as if what the iteration began with had sampled them."""
        mean, logprob = self.proximal_mean, self.proximal_logprob
        if mean is None or logprob is None:
            mean, logprob = self.transition.mean, self.logprob
        return self._replace(behaviour_logprob=logprob.detach(), behaviour_mean=mean.detach())


class ForwardLoss(NamedTuple):
    """What an algorithm on the forward process makes of B pairs."""

    per_pair: Tensor  # [B], carries gradient
    reference: Tensor  # [B], mean of (v - v_reference)^2, detached; 0 without a reference
    surrogate: SurrogateLoss | None = None  # where there are ratios


class Noised(NamedTuple):
    """B clean latents at a noise level each, and the velocities of three policies there."""

    velocity: Tensor  # [B, ...] of the policy being trained; carries gradient
    start_velocity: Tensor  # [B, ...] of what generated when the iteration began
    reference_velocity: Tensor | None  # [B, ...] of the reference policy, where it is asked for
    x: Tensor  # [B, ...] noised
    noise: Tensor  # [B, ...] that noised them
    x_0: Tensor  # [B, ...] clean
    sigma: Tensor  # [B]
    advantage: Tensor  # [B]
