"""DiffusionNFT: reinforcement on the forward process, without log-probs or stored trajectories.

Source: DiffusionNFT (arXiv:2509.16117), with the weighting of its code. The data is the clean
latent x_0 of each sample, drawn by the *old* policy with any sampler, and its optimality r. At a
noise level sigma in (0, 1], with x = (1 - sigma) x_0 + sigma * noise,

    v+ = (1 - beta) * v_old + beta * v                 what the policy should do
    v- = (1 + beta) * v_old - beta * v                 its mirror image: what it should not
    x_0+- = x - sigma * v+-
    w+-   = mean over elements of |x_0+- - x_0|, at least 1e-5, without gradient
    L+-   = mean over elements of (x_0+- - x_0)^2 / w+-
    loss  = max_advantage * mean of [r * L+ + (1 - r) * L-] / beta
            + reference_coefficient * mean of (v - v_reference)^2
    r     = clamp(A / max_advantage, -1, 1) / 2 + 1/2

Published settings: beta 1 (0.1 for OCR and several rewards), max_advantage 5, reference 1e-4.
After an iteration the old weights become decay * old + (1 - decay) * current, with the decays of
`digen_core.maths.forward_process`.

Deviation: the published code takes w and the division in float64; here it is float32, or float64
where the latents are.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from digen_core.maths.names import AdvantageMode
from digen_core.maths.tensors import float32_at_least, per_trajectory

_MIN_WEIGHT = 1e-5


class NftLoss(NamedTuple):
    """A scalar to differentiate, its terms, and a detached number to plot."""

    loss: Tensor  # [], mean of per_pair
    per_pair: Tensor  # [B], policy plus weighted reference term; carries gradient
    policy: Tensor  # [B], [r * L+ + (1 - r) * L-] / beta, detached
    reference: Tensor  # [B], mean of (v - v_reference)^2, detached; 0 without a reference
    distance: Tensor  # [B], mean of (v - v_old)^2, detached


def optimality(
    advantages: Tensor, *, max_advantage: float = 5.0, mode: AdvantageMode = "all"
) -> Tensor:
    """Return [B] probabilities in [0, 1] that a sample is optimal, from its advantage.

    Args:
        advantages: [B].
        max_advantage: the |advantage| that means certainty.
        mode: which advantages count: all; only positive or only negative ones, others as 0;
            "one_only" sets positive ones to 1 and others to 0; "binary" takes the sign.
            Published: the last two are divided by ``max_advantage`` as well, so with 5 they give
            0.5 or 0.6, and 0.4, 0.5 or 0.6.
    """
    match mode:
        case "all":
            counted = advantages
        case "positive_only":
            counted = advantages.clamp(min=0)
        case "negative_only":
            counted = advantages.clamp(max=0)
        case "one_only":
            counted = (advantages > 0).to(advantages.dtype)
        case "binary":
            counted = advantages.sign()
        case _:
            raise ValueError(
                f"mode ({mode!r}) must be 'all', 'positive_only', 'negative_only', 'one_only' or "
                "'binary'"
            )
    return (counted / max_advantage).clamp(-1, 1) / 2 + 0.5


def nft_loss(
    velocity: Tensor,
    old_velocity: Tensor,
    reference_velocity: Tensor | None,
    x: Tensor,
    x_0: Tensor,
    sigma: float | Tensor,
    optimality: Tensor,
    *,
    beta: float,
    max_advantage: float = 5.0,
    reference_coefficient: float = 1e-4,
) -> NftLoss:
    """Return the loss of B (sample, noise level) pairs.

    Args:
        velocity: [B, ...] of the policy being trained at (x, sigma); carries gradient.
        old_velocity: [B, ...] of the policy that sampled.
        reference_velocity: [B, ...] of the reference policy; None leaves its term out.
        x: [B, ...] noised latent.
        x_0: [B, ...] clean latent of the sample.
        sigma: noise level in (0, 1], one number or [B].
        optimality: [B] in [0, 1].
        beta: distance of the two branches from the old policy, above 0.
        max_advantage: factor of the policy term.
        reference_coefficient: factor of the reference term.

    Raises:
        ValueError: if shapes do not match or ``beta`` is not positive.
    """
    given = (velocity, old_velocity, x, x_0)
    if any(tensor.shape != x.shape for tensor in given) or optimality.shape != x.shape[:1]:
        raise ValueError(
            f"velocities, x and x_0 must have one shape [B, ...] and optimality [B], got "
            f"{[list(tensor.shape) for tensor in given]} and {list(optimality.shape)}"
        )
    if not beta > 0:
        raise ValueError(f"beta ({beta}) must be positive")
    dtype = float32_at_least(*given)
    v, v_old, x, x_0 = (
        velocity.to(dtype),
        old_velocity.detach().to(dtype),
        x.to(dtype),
        x_0.to(dtype),
    )
    level, share = per_trajectory(sigma, x), optimality.detach().to(dtype)
    positive = _branch_loss(x - level * ((1 - beta) * v_old + beta * v), x_0)
    negative = _branch_loss(x - level * ((1 + beta) * v_old - beta * v), x_0)
    policy = (share * positive + (1 - share) * negative) / beta
    reference = torch.zeros_like(policy)
    if reference_velocity is not None:
        reference = _mean_square(v - reference_velocity.detach().to(dtype))
    per_pair = max_advantage * policy + reference_coefficient * reference
    return NftLoss(
        loss=per_pair.mean(),
        per_pair=per_pair,
        policy=policy.detach(),
        reference=reference.detach(),
        distance=_mean_square(v.detach() - v_old),
    )


def _branch_loss(predicted_clean: Tensor, x_0: Tensor) -> Tensor:
    error = predicted_clean - x_0
    weight = error.detach().abs().flatten(1).mean(1).clamp(min=_MIN_WEIGHT)
    return _mean_square(error) / weight


def _mean_square(value: Tensor) -> Tensor:
    return (value**2).flatten(1).mean(1)
