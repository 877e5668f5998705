"""Advantage Weighted Matching: the clipped surrogate, of the flow-matching loss for a log-prob.

Source: AWM (arXiv:2509.25050), with the weightings of its code. The data is the clean latent x_0 of
each sample, by any sampler, and its advantage A. At a noise level sigma in (0, 1], with
x = (1 - sigma) x_0 + sigma * noise,

    L        = mean over elements of (v - (noise - x_0))^2
    logprob  = -w(L, sigma)
    uniform  w = L
    t        w = sigma * L
    t2       w = sigma^2 * L
    huber    w = sigma * (sqrt(L + 1e-10) - 1e-5)
    ghuber   w = sigma * ((L + 1e-10)^p - 1e-10^p) / p
    ratio    = exp(logprob - start_logprob)
    loss     = mean of max(-A ratio, -A clip(ratio, 1 -+ clip_range))
               + start_coefficient * mean of (v - v_start)^2
               + reference_coefficient * mean of (v - v_reference)^2

where v_start is the velocity of what generated when the iteration began, and start_logprob its
log-prob of the same noise. Published settings: ghuber with p = 1/4, clip_range 1,
start_coefficient 1, reference_coefficient 0.003 (GenEval, OCR) and 1e-4 (PickScore).

Deviation: the published code takes log-probs in float64; here they are float32, or float64 where
the latents are.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from digen_core.maths.grpo import SurrogateLoss, clipped_surrogate
from digen_core.maths.names import MatchingWeight
from digen_core.maths.replay import Noised
from digen_core.maths.tensors import float32_at_least

_LEAST = 1e-10  # added to losses whose root is taken: its derivative at 0 is infinite


class AwmLoss(NamedTuple):
    """What to differentiate, and its terms."""

    per_pair: Tensor  # [B], surrogate plus weighted distances; carries gradient
    surrogate: SurrogateLoss  # with its ratios; carries gradient
    start: Tensor  # [B], mean of (v - v_start)^2, detached
    reference: Tensor  # [B], mean of (v - v_reference)^2, detached; 0 without a reference


def matching_logprob(
    velocity: Tensor,
    noise: Tensor,
    x_0: Tensor,
    sigma: Tensor,
    *,
    weighting: MatchingWeight = "ghuber",
    power: float = 0.25,
) -> Tensor:
    """Return [B] log-probs of clean latents: minus their weighted flow-matching losses.

    Args:
        velocity: [B, ...] at the noised latents.
        noise: [B, ...] that noised them.
        x_0: [B, ...] clean latents.
        sigma: [B] noise levels in (0, 1].
        weighting: of the loss, see above.
        power: p of ghuber.

    Raises:
        ValueError: shapes do not match, or the weighting is unknown.
    """
    given = (velocity, noise, x_0)
    if any(tensor.shape != x_0.shape for tensor in given) or sigma.shape != x_0.shape[:1]:
        raise ValueError(
            f"velocity, noise and x_0 must have one shape [B, ...] and sigma [B], got "
            f"{[list(tensor.shape) for tensor in given]} and {list(sigma.shape)}"
        )
    dtype = float32_at_least(*given)
    error = velocity.to(dtype) - (noise.to(dtype) - x_0.to(dtype))
    loss: Tensor = (error**2).flatten(1).mean(1)
    level = sigma.to(dtype)
    match weighting:
        case "uniform":
            return -loss
        case "t":
            return -level * loss
        case "t2":
            return -level * level * loss
        case "huber":
            return -level * (torch.sqrt(loss + _LEAST) - math.sqrt(_LEAST))
        case "ghuber":
            return -level * (torch.pow(loss + _LEAST, power) - math.pow(_LEAST, power)) / power
        case _:
            raise ValueError(
                f"weighting ({weighting!r}) must be 'uniform', 't', 't2', 'huber' or 'ghuber'"
            )


def awm_loss(
    pairs: Noised,
    *,
    weighting: MatchingWeight = "ghuber",
    power: float = 0.25,
    clip_range: float = 1.0,
    start_coefficient: float = 1.0,
    reference_coefficient: float = 0.0,
) -> AwmLoss:
    """Return the loss of B (sample, noise level) pairs.

    Args:
        pairs: with velocities; that of the policy being trained carries gradient.
        weighting: of the flow-matching loss.
        power: p of ghuber.
        clip_range: half-width of the clip of ratios; of 1, they are clipped to 0 and 2.
        start_coefficient: factor of the distance to the velocity of what generated.
        reference_coefficient: factor of the distance to that of the reference policy.

    Raises:
        ValueError: shapes do not match, or the weighting is unknown.
    """

    def logprob(velocity: Tensor) -> Tensor:
        return matching_logprob(
            velocity, pairs.noise, pairs.x_0, pairs.sigma, weighting=weighting, power=power
        )

    start_velocity = pairs.start_velocity.detach()
    found = clipped_surrogate(
        logprob(pairs.velocity), logprob(start_velocity), pairs.advantage, clip_range=clip_range
    )
    start = _distance(pairs.velocity, start_velocity)
    reference = torch.zeros_like(start)
    if pairs.reference_velocity is not None:
        reference = _distance(pairs.velocity, pairs.reference_velocity.detach())
    per_pair = found.per_pair + start_coefficient * start + reference_coefficient * reference
    return AwmLoss(per_pair, found, start.detach(), reference.detach())


def _distance(one: Tensor, other: Tensor) -> Tensor:
    dtype = float32_at_least(one, other)
    return ((one.to(dtype) - other.to(dtype)) ** 2).flatten(1).mean(1)
