"""Advantages from several rewards, from a KL in the reward, and the choice of whom to train.

Each group's normalisation is that of ``grpo.group_advantages``; this file puts it together:

    mix "rewards":     A = normalise(sum of w_k * reward_k)             Flow-GRPO, MixGRPO
    mix "advantages":  A = sum of w_k * clamp(normalise(reward_k))      MixGRPO, LongCat-Video,
                                                                        DanceGRPO
    KL as a reward:    A_t = normalise(reward - coefficient * KL_t)     Flow-GRPO (arXiv:2505.05470)
    best of n:         the ceil(n/2) best and floor(n/2) worst of each group
                                                                        DanceGRPO (arXiv:2505.07818)

DanceGRPO's loss of two rewards is the weighted sum of two clipped surrogates, one per reward. Where
no ratio is clipped that is the surrogate of the mixed advantages, which is what to use here; it is
also what DanceGRPO ranks by. Advantages are clamped to +-``max_advantage`` one reward at a time.

Deviations: weights are used as given; MixGRPO's code divides them by their sum, and clamps the sum,
which with such weights is within the bounds of its terms. DanceGRPO's code
takes the best and the worst of all samples on a device, whatever their prompts, which drops whole
groups when prompts differ in difficulty; here n are taken from each group.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple, TypedDict, Unpack

import torch
from torch import Tensor

from digen_core.maths.ddpo import RewardHistory
from digen_core.maths.grpo import group_advantages, zero_variance_groups
from digen_core.maths.names import AdvantageMix, AdvantageScale


class Scaling(TypedDict, total=False):
    """How ``group_advantages`` scales."""

    scale: AdvantageScale
    eps: float
    ddof: int
    trimmed_ratio: float


class Scored(NamedTuple):
    """Rewards of the B samples of some groups, group after group."""

    reward: Tensor  # float64 [B], the weighted sum of all rewards
    owner: Tensor  # int [B], the group of each sample
    prompts: Sequence[str]  # [B]
    rows: Tensor  # float64 [K, B] of what advantages are made: the sum, or each reward
    weights: Tensor  # float64 [K] of the rows
    counted: Tensor  # bool [K, B], whether the sample's group has a score in that row
    step_values: Tensor | None = None
    """[B, T] of each trained step: the divergence from the reference policy, or the margin."""


class Signal(NamedTuple):
    """What the rewards of some groups say of their samples."""

    advantages: Tensor  # float64 [B], or [B, T] where trained steps differ
    flat: frozenset[int]  # groups that teach nothing
    history: RewardHistory  # of each prompt, these rewards included, where it is kept


def group_signal(
    scored: Scored,
    *,
    mix: AdvantageMix,
    kl_factor: float,
    max_advantage: float,
    history: RewardHistory,
    **scaling: Unpack[Scaling],
) -> Signal:
    """Return advantages within groups; groups of equal rewards, in each row, are flat.

    Args:
        scored: the rewards; ``step_values``, which are divergences, are taken off their sum step
            by step.
        mix: as in ``mixed_advantages``.
        kl_factor: of the divergence.
        max_advantage: bound of the absolute advantages of what is normalised.
        history: handed on.
        scaling: as in ``group_advantages``.
    """
    if scored.step_values is None:
        rows = scored.rows
        values = mixed_advantages(
            rows,
            scored.owner,
            scored.weights,
            mix=mix,
            max_advantage=max_advantage,
            counted=scored.counted,
            **scaling,
        )
    else:
        rows = penalised_rewards(scored.reward, scored.step_values, kl_factor).T
        values = kl_reward_advantages(
            scored.reward,
            scored.step_values,
            scored.owner,
            coefficient=kl_factor,
            max_advantage=max_advantage,
            counted=scored.counted[0],
            **scaling,
        )
    trimmed_ratio = scaling.get("trimmed_ratio", 0.0)
    flat = frozenset.intersection(
        *(
            frozenset(zero_variance_groups(row, scored.owner, trimmed_ratio=trimmed_ratio))
            for row in rows
        )
    )
    return Signal(values, flat, history)


def mixed_advantages(
    rewards: Tensor,
    group_index: Tensor,
    weights: Tensor,
    *,
    mix: AdvantageMix,
    max_advantage: float = math.inf,
    counted: Tensor | None = None,
    **scaling: Unpack[Scaling],
) -> Tensor:
    """Return [B] float64 advantages of K rewards.

    Args:
        rewards: [K, B], one row per reward function.
        group_index: [B] integer group ids, in any order.
        weights: [K].
        mix: what to take the weighted sum of. Of rewards, one with a large spread outweighs the
            others; of advantages, each counts by its weight whatever its scale.
        max_advantage: bound of the absolute advantages of what is normalised.
        counted: [K, B] as in ``group_advantages``; of mix "rewards" those that each row counts.
        scaling: as in ``group_advantages``.

    Raises:
        ValueError: if shapes do not match, or as ``group_advantages`` does.
    """
    if rewards.ndim != 2 or weights.shape != rewards.shape[:1]:
        raise ValueError(
            f"rewards {list(rewards.shape)} and weights {list(weights.shape)} must be [K, B], [K]"
        )
    exact = weights.double()

    def normalised(values: Tensor, counted: Tensor) -> Tensor:
        found = group_advantages(values, group_index, counted=counted, **scaling)
        return found.clamp(-max_advantage, max_advantage)

    if counted is None:
        counted = torch.ones_like(rewards, dtype=torch.bool)
    match mix:
        case "rewards":
            return normalised(exact @ rewards.double(), counted.all(0))
        case "advantages":
            return exact @ torch.stack(
                [normalised(*row) for row in zip(rewards, counted, strict=True)]
            )
        case _:
            raise ValueError(f"mix ({mix!r}) must be 'rewards' or 'advantages'")


def kl_reward_advantages(
    rewards: Tensor,
    step_kl: Tensor,
    group_index: Tensor,
    *,
    coefficient: float,
    max_advantage: float = math.inf,
    counted: Tensor | None = None,
    **scaling: Unpack[Scaling],
) -> Tensor:
    """Return [B, K] float64 advantages, one per trained step, of rewards less each step's KL.

    Args:
        rewards: [B].
        step_kl: [B, K] divergence from the reference policy at each trained step, as sampled.
        group_index: [B] integer group ids, in any order.
        coefficient: of the KL.
        max_advantage: bound of the absolute advantages.
        counted: [B] as in ``group_advantages``.
        scaling: as in ``group_advantages``; statistics are over trajectories, step by step.

    Raises:
        ValueError: if shapes do not match, or as ``group_advantages`` does.
    """
    if step_kl.ndim != 2 or step_kl.shape[:1] != rewards.shape:
        raise ValueError(
            f"rewards {list(rewards.shape)} and step_kl {list(step_kl.shape)} must be [B], [B, K]"
        )
    columns = [
        group_advantages(column, group_index, counted=counted, **scaling)
        for column in penalised_rewards(rewards, step_kl, coefficient).T
    ]
    return torch.stack(columns, dim=1).clamp(-max_advantage, max_advantage)


def penalised_rewards(rewards: Tensor, step_kl: Tensor, coefficient: float) -> Tensor:
    """Return [B, K] float64: rewards [B] less the weighted divergences [B, K] of the steps."""
    return rewards.double()[:, None] - coefficient * step_kl.double()


def best_of_n(advantages: Tensor, group_index: Tensor, n: int) -> Tensor:
    """Return [n * G] positions of the trajectories to train, ascending; ties go by position.

    Args:
        advantages: [B], or anything else to rank by.
        group_index: [B] integer group ids, in any order.
        n: how many of each group: its ceil(n / 2) best and its floor(n / 2) worst.

    Raises:
        ValueError: if shapes do not match, or a group has fewer than ``n`` trajectories.
    """
    if advantages.ndim != 1 or advantages.shape != group_index.shape:
        raise ValueError(
            f"advantages {list(advantages.shape)} and group_index {list(group_index.shape)} must "
            "have one shape [B]"
        )
    chosen = []
    for group_id in sorted(set(group_index.tolist())):
        members = (group_index == group_id).nonzero().flatten()
        if not 1 <= n <= len(members):
            raise ValueError(
                f"best of n: n ({n}) must be between 1 and the {len(members)} trajectories of "
                f"group {group_id}"
            )
        ranked = members[advantages[members].argsort(stable=True)]
        chosen += [ranked[: n // 2], ranked[len(ranked) - (n - n // 2) :]]
    return torch.cat(chosen).sort().values
