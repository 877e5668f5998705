"""Preferences between samples on the forward process: DGPO of groups, Diffusion-DPO of pairs.

Sources: DGPO (Direct Group Preference Optimization, arXiv:2510.08425) and Diffusion-DPO
(arXiv:2311.12908), as their code computes them. The data is the clean latent x_0 of each sample of
a group, by any sampler, and its advantage A. At a noise level sigma, with
x = (1 - sigma) x_0 + sigma * noise, the same noise for all samples of a group where it is shared,

    l        = mean over elements of (v - (noise - x_0))^2       the flow-matching loss
    margin   = l - l_reference
    DGPO     w = sigmoid(beta * mean over the group of A * margin), without gradient
             loss = mean of w * A * l
    DPO      the best sample has A = 1, the worst A = -1, no other is trained
             w = sigmoid(beta / 2 * (margin_best - margin_worst))
             loss = mean of beta * w * A * l      its gradient is that of
             mean of -log sigmoid(-beta / 2 * (l_best - l_worst - (the same of the reference)))
    implicit reward
             -beta * margin of DGPO, -beta / 2 * margin of DPO: a preference of two samples is
             ranked rightly where that of the better one is higher (Diffusion-DPO's implicit_acc)
    clipped  l has no gradient where ratio = exp(l_start - l) is above 1 + clip_range and A > 0, or
             below 1 - clip_range and A <= 0; l_start is of what generated when the iteration began

Published settings: DGPO beta 100, with guidance 101 for GenEval, clip_range 0.01 with guidance and
0.001 without, reference_coefficient 0.02, four levels of the first seven (OCR) or five (GenEval) of
ten; Diffusion-DPO beta 2000 and more.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from digen_core.maths.grpo import SurrogateLoss, approximate_kl
from digen_core.maths.replay import Noised
from digen_core.maths.tensors import float32_at_least


class PreferenceLoss(NamedTuple):
    """What to differentiate, and its terms."""

    per_pair: Tensor  # [B], weighted matching plus the weighted distance; carries gradient
    surrogate: SurrogateLoss  # with ratios, and the share of those that are clipped
    reference: Tensor  # [B], mean of (v - v_reference)^2, detached; 0 without a reference


def matching_loss(velocity: Tensor, noise: Tensor, x_0: Tensor) -> Tensor:
    """Return [B] flow-matching losses of velocities [B, ...] at noised latents.

    Raises:
        ValueError: shapes do not match.
    """
    if not velocity.shape == noise.shape == x_0.shape:
        raise ValueError(
            f"velocity {list(velocity.shape)}, noise {list(noise.shape)} and x_0 "
            f"{list(x_0.shape)} must have one shape [B, ...]"
        )
    dtype = float32_at_least(velocity, noise, x_0)
    error: Tensor = velocity.to(dtype) - (noise.to(dtype) - x_0.to(dtype))
    return (error**2).flatten(1).mean(1)


def group_weights(advantages: Tensor, margins: Tensor, owner: Tensor, *, beta: float) -> Tensor:
    """Return [B, K] float64 weights, equal within a group: DGPO's sigmoid of the group's sum.

    Args:
        advantages: [B].
        margins: [B, K] by which each sample's loss is above the reference's at each level.
        owner: [B] integer group ids, in any order.
        beta: how sharply preferences count.

    Raises:
        ValueError: shapes do not match.
    """
    if advantages.shape != owner.shape or margins.shape[:1] != owner.shape or margins.ndim != 2:
        raise ValueError(
            f"advantages {list(advantages.shape)}, margins {list(margins.shape)} and owner "
            f"{list(owner.shape)} must be [B], [B, K], [B]"
        )
    terms = beta * advantages.double()[:, None] * margins.double()
    weights = torch.empty_like(terms)
    for group in owner.unique():
        members = owner == group
        weights[members] = torch.sigmoid(terms[members].mean(0))
    return weights


def best_and_worst(rewards: Tensor, owner: Tensor) -> Tensor:
    """Return [B] float64: 1 for the best sample of each group, -1 for the worst, 0 for others.

    Among equal ones the last is the best and the first the worst; a group of equal rewards has two
    of its samples chosen, too.

    Args:
        rewards: [B].
        owner: [B] integer group ids, in any order.
    """
    chosen = torch.zeros(len(rewards), dtype=torch.float64)
    for group in owner.unique():
        ranked = (owner == group).nonzero().flatten()
        ranked = ranked[rewards[ranked].argsort(stable=True)]
        chosen[ranked[-1]], chosen[ranked[0]] = 1.0, -1.0
    return chosen


def implicit_differences(rewards: Tensor, margins: Tensor, *, beta: float) -> Tensor:
    """Return [P, K] float64: by how much the better of two samples has the higher implicit reward.

    Args:
        rewards: [G] of one group; its P pairs are those of unequal ones.
        margins: [G, K] by which each sample's loss is above the reference's at each level.
        beta: factor of the implicit reward, which is -beta * margin.

    Raises:
        ValueError: shapes do not match.
    """
    if rewards.ndim != 1 or margins.ndim != 2 or len(margins) != len(rewards):
        raise ValueError(
            f"rewards {list(rewards.shape)} and margins {list(margins.shape)} must be [G], [G, K]"
        )
    better, worse = (rewards[:, None] > rewards[None, :]).nonzero(as_tuple=True)
    implicit = -beta * margins.double()
    return implicit[better] - implicit[worse]


def share_ranked_rightly(differences: Tensor) -> float:
    """Return the share of differences [P, K] above 0, and half of those that are 0.

    Diffusion-DPO's code counts a tie as wrong, so it has 0 where nothing has been learnt yet.

    Raises:
        ValueError: there are none.
    """
    if not differences.numel():
        raise ValueError("there is no pair of samples of unequal rewards")
    return float(((differences.sign() + 1) / 2).mean())


def preference_loss(
    pairs: Noised, *, clip_range: float | None = None, reference_coefficient: float = 0.0
) -> PreferenceLoss:
    """Return the loss of B (sample, noise level) pairs.

    Args:
        pairs: whose advantages are those of samples times the weights above; the velocity of the
            policy being trained carries gradient.
        clip_range: half-width of the interval of ratios outside which a pair may not move further
            away; None: none is.
        reference_coefficient: factor of the distance to the velocity of the reference policy.
    """
    loss = matching_loss(pairs.velocity, pairs.noise, pairs.x_0)
    start = matching_loss(pairs.start_velocity.detach(), pairs.noise, pairs.x_0)
    log_ratio = (start - loss).detach()
    ratio, advantage = log_ratio.exp(), pairs.advantage.detach().to(loss.dtype)
    clipped = torch.zeros_like(ratio, dtype=torch.bool)
    if clip_range is not None:
        clipped = torch.where(advantage > 0, ratio > 1 + clip_range, ratio < 1 - clip_range)
    own = advantage * torch.where(clipped, loss.detach(), loss)
    reference = torch.zeros_like(own)
    if pairs.reference_velocity is not None and reference_coefficient:
        error = pairs.velocity.to(loss.dtype) - pairs.reference_velocity.detach().to(loss.dtype)
        reference = (error**2).flatten(1).mean(1)
    surrogate = SurrogateLoss(
        loss=own.mean(),
        per_pair=own,
        ratio=ratio,
        clipped=clipped,
        approx_kl=approximate_kl(log_ratio),
    )
    return PreferenceLoss(own + reference_coefficient * reference, surrogate, reference.detach())
