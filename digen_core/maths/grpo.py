"""GRPO: group-relative advantages and the clipped surrogate. Pure functions of tensors.

Sources: DeepSeekMath (arXiv:2402.03300, outcome supervision) for the advantages and PPO
(arXiv:1707.06347, eq. 7) for the surrogate, as combined by Flow-GRPO (arXiv:2505.05470).

    advantage = (reward - mean of its group) / (std + eps)
    loss      = mean of max(-advantage * ratio, -advantage * clip(ratio, 1 -+ clip_range))

Published settings: Flow-GRPO eps 1e-4, ddof 0, std of the group or (``global_std``) of all rewards;
DanceGRPO eps 1e-8, ddof 1, std of the group; LongCat-Video (arXiv:2510.22200, eq. 9) the largest
std of all groups; Dr. GRPO no std. MixGRPO's ``trimmed_ratio`` leaves each group's lowest rewards
out of mean and std, but gives them an advantage.

Deviation: a group of (numerically) equal rewards gets advantages of exactly 0. The published
formula leaves rounding noise there, which a small eps blows up: eight float32 rewards of 0.3 have
a mean that is off by 3e-8. Equal means: the rewards that are not trimmed.

Axes: B trajectories of any number of groups, or B (trajectory, step) pairs. Advantages are float64;
the surrogate is float32, or float64 where the log-probabilities are.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from digen_core.maths.names import AdvantageScale
from digen_core.maths.tensors import float32_at_least

_ZERO_SPREAD = 1e-9


class SurrogateLoss(NamedTuple):
    """A scalar to differentiate, its terms, and detached numbers to plot."""

    loss: Tensor  # [], mean of per_pair
    per_pair: Tensor  # [B], carries gradient, as loss does
    ratio: Tensor  # [B]
    clipped: Tensor  # [B] bool, whether a ratio is outside the clip interval, binding or not
    approx_kl: Tensor  # [], Schulman's k3 estimate of KL(behaviour || current)

    @property
    def clip_fraction(self) -> Tensor:
        """The share [] of clipped pairs."""
        return self.clipped.to(self.ratio.dtype).mean()


class _Groups(NamedTuple):
    ids: Tensor  # [G] distinct group ids, ascending
    member: Tensor  # [B] position of each trajectory's group in ids
    kept: Tensor  # [B] bool, false for the lowest rewards of a group if they are trimmed
    size: Tensor  # [G] how many are kept
    has_zero_variance: Tensor  # [G] bool


def group_advantages(
    rewards: Tensor,
    group_index: Tensor,
    *,
    scale: AdvantageScale = "group",
    eps: float = 1e-4,
    ddof: int = 0,
    trimmed_ratio: float = 0.0,
    counted: Tensor | None = None,
) -> Tensor:
    """Centre each group's rewards, optionally dividing by a standard deviation.

    Args:
        rewards: [B], any float dtype.
        group_index: [B] integer group ids, in any order.
        scale: whose standard deviation to divide by: the group's, that of all rewards, the largest
            of all groups; "none" only centres.
        eps: added to the standard deviation.
        ddof: the standard deviation divides by n - ddof: 0 is the population's, 1 the unbiased one.
        trimmed_ratio: share in [0, 1) of each group's rewards, the lowest ones, to leave out of
            means and standard deviations; at least one reward stays.
        counted: [B] bool, whose rewards the standard deviation of scale "batch" is of; None: all.

    Returns:
        [B] float64 advantages; every group sums to zero if nothing is trimmed.

    Raises:
        ValueError: if a reward is not finite, shapes do not match, or a group is too small.
    """
    groups = _grouped(rewards, group_index, trimmed_ratio)
    exact = rewards.double()
    centred = exact - (_sum_by_group(exact, groups) / groups.size)[groups.member]
    match scale:
        case "none":
            std_plus_eps = torch.ones_like(centred)
        case "batch":
            kept = exact[groups.kept if counted is None else groups.kept & counted]
            if ddof >= len(kept):
                raise ValueError(f"ddof ({ddof}) must be below the number of rewards, {len(kept)}")
            std_plus_eps = kept.std(correction=ddof) + eps
        case "group" | "max_group":
            _require_larger_groups(groups, ddof)
            std = (_sum_by_group(centred**2, groups) / (groups.size - ddof)).sqrt()
            std_plus_eps = (std[groups.member] if scale == "group" else std.max()) + eps
        case _:
            raise ValueError(f"scale ({scale!r}) must be 'group', 'batch', 'max_group' or 'none'")
    advantages = centred / std_plus_eps
    return advantages.masked_fill(groups.has_zero_variance[groups.member], 0.0)


def zero_variance_groups(
    rewards: Tensor, group_index: Tensor, *, trimmed_ratio: float = 0.0
) -> list[int]:
    """Return the ids of groups whose rewards are all equal, ascending: they teach nothing.

    Equal means a spread of at most 1e-9, relative to the group's largest |reward| if that is > 1.

    Args:
        rewards: [B].
        group_index: [B] integer group ids, in any order.
        trimmed_ratio: as in ``group_advantages``; the trimmed rewards do not count.
    """
    groups = _grouped(rewards, group_index, trimmed_ratio)
    return [int(group_id) for group_id in groups.ids[groups.has_zero_variance]]


def clipped_surrogate(
    logprob: Tensor, behaviour_logprob: Tensor, advantages: Tensor, *, clip_range: float
) -> SurrogateLoss:
    """PPO's pessimistic bound, averaged over elements.

    Args:
        logprob: [B] under the policy being trained; carries gradient.
        behaviour_logprob: [B] under the policy version that sampled, as stored in the trajectory.
        advantages: [B].
        clip_range: half-width of the interval around ratio 1.
    """
    if not logprob.shape == behaviour_logprob.shape == advantages.shape:
        raise ValueError(
            f"logprob {list(logprob.shape)}, behaviour_logprob {list(behaviour_logprob.shape)} and "
            f"advantages {list(advantages.shape)} must have one shape [B]"
        )
    dtype = float32_at_least(logprob, behaviour_logprob)
    log_ratio = logprob.to(dtype) - behaviour_logprob.detach().to(dtype)
    fixed = advantages.detach().to(dtype)
    ratio = log_ratio.exp()
    clipped = ratio.clamp(1 - clip_range, 1 + clip_range)
    per_pair = torch.maximum(-fixed * ratio, -fixed * clipped)
    return SurrogateLoss(
        loss=per_pair.mean(),
        per_pair=per_pair,
        ratio=ratio.detach(),
        clipped=ratio.detach() != clipped.detach(),
        approx_kl=approximate_kl(log_ratio),
    )


def approximate_kl(log_ratio: Tensor) -> Tensor:
    """Return [] Schulman's k3 estimate of KL(behaviour || current), detached, of [B] log-ratios."""
    exact = log_ratio.detach().double()  # k3 is log_ratio^2 / 2: float32 would round it away
    return (exact.expm1() - exact).mean()


def squared_log_ratio(logprob: Tensor, behaviour_logprob: Tensor) -> Tensor:
    """Return [B] (log ratio)^2 / 2, MixGRPO's penalty on moving away from the policy that sampled.

    Its published coefficient is 0.

    Args:
        logprob: [B] under the policy being trained; carries gradient.
        behaviour_logprob: [B] under the policy version that sampled.
    """
    dtype = float32_at_least(logprob, behaviour_logprob)
    return (logprob.to(dtype) - behaviour_logprob.detach().to(dtype)) ** 2 / 2


def _grouped(rewards: Tensor, group_index: Tensor, trimmed_ratio: float) -> _Groups:
    if rewards.ndim != 1 or rewards.shape != group_index.shape or len(rewards) == 0:
        raise ValueError(
            f"rewards {list(rewards.shape)} and group_index {list(group_index.shape)} must have "
            "one shape [B], with B > 0"
        )
    if group_index.is_floating_point() or group_index.is_complex():
        raise ValueError(f"group_index must be of an integer dtype, not {group_index.dtype}")
    exact = rewards.double()
    if not bool(exact.isfinite().all()):
        bad = int(exact.isfinite().logical_not().nonzero()[0])
        raise ValueError(
            f"reward {bad} of group {int(group_index[bad])} is {exact[bad].item()}: "
            "rewards must be finite; check the reward model or drop the trajectory"
        )
    ids, member, size = torch.unique(group_index, return_inverse=True, return_counts=True)
    kept = _kept(exact, member, size, trimmed_ratio)
    member_kept, exact_kept = member[kept], exact[kept]
    empty = exact.new_zeros(len(ids))
    top = empty.scatter_reduce(0, member_kept, exact_kept, "amax", include_self=False)
    bottom = empty.scatter_reduce(0, member_kept, exact_kept, "amin", include_self=False)
    magnitude = torch.maximum(top.abs(), bottom.abs()).clamp(min=1)
    has_zero_variance = top - bottom <= _ZERO_SPREAD * magnitude
    return _Groups(ids, member, kept, torch.bincount(member_kept), has_zero_variance)


def _kept(rewards: Tensor, member: Tensor, size: Tensor, trimmed_ratio: float) -> Tensor:
    """Return [B] whether a reward is above the trimmed share of its group; ties go by position."""
    if not 0 <= trimmed_ratio < 1:
        raise ValueError(f"trimmed_ratio ({trimmed_ratio}) must be in [0, 1)")
    by_reward = rewards.argsort(stable=True)
    order = by_reward[member[by_reward].argsort(stable=True)]  # by group, then by reward
    first = size.cumsum(0) - size
    rank = torch.empty_like(order)
    rank[order] = torch.arange(len(order), device=order.device) - first[member[order]]
    return rank >= (size.double() * trimmed_ratio).long()[member]


def _sum_by_group(values: Tensor, groups: _Groups) -> Tensor:
    """Return [G] sums of the values that are kept."""
    kept = groups.kept
    return values.new_zeros(len(groups.ids)).index_add(0, groups.member[kept], values[kept])


def _require_larger_groups(groups: _Groups, ddof: int) -> None:
    smallest = int(groups.size.argmin())
    if ddof >= int(groups.size[smallest]):
        raise ValueError(
            f"group {int(groups.ids[smallest])} has {int(groups.size[smallest])} reward(s), too "
            f"few for ddof {ddof}: sample larger groups, trim fewer or lower ddof"
        )
