"""The loss of one pack: replay stored transitions under the current policy.

A pair is one sample at one trained step; a pack is any set of pairs, of different samples and
steps, in one forward and backward. The loss is a *sum* over pairs divided by the number of pairs of
the whole update, fixed in advance: packs of any size, in any order, add up to the same gradient.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from digen_core.algorithms.flow_sde import LOGPROBS, TRANSITIONS
from digen_core.algorithms.grpo import clipped_surrogate
from digen_core.algorithms.kl import flowgrpo_kl, transition_kl
from digen_core.config import FlowGrpoConfig, RolloutConfig
from digen_core.models.policy import Condition, Policy
from digen_core.models.trainable import reference_weights


@dataclass(frozen=True, slots=True)
class Pairs:
    """b pairs, one per row."""

    x: Tensor  # [b, ...] latent before the step
    x_next: Tensor  # [b, ...] latent after it
    behaviour_logprob: Tensor  # [b] under the version that sampled
    advantage: Tensor  # [b]
    sigma: Tensor  # [b]
    sigma_next: Tensor  # [b]
    condition: Condition  # [b, ...] each


@dataclass(frozen=True, slots=True)
class PackMetrics:
    """Sums over the pairs of a pack, for means over the update."""

    num_pairs: int
    loss: float
    kl: float
    clipped: float
    approx_kl: float
    max_log_ratio: float  # largest |log ratio|; 0 on-policy: the replay check


def pack_loss(
    policy: Policy,
    pairs: Pairs,
    *,
    rollout: RolloutConfig,
    algorithm: FlowGrpoConfig,
    sigma_max: float,
    num_pairs_of_update: int,
) -> tuple[Tensor, PackMetrics]:
    """Return the scalar to differentiate and what to plot.

    Raises:
        FloatingPointError: a log-ratio or the loss is NaN or infinite.
    """
    transition_of = TRANSITIONS[rollout.transition]
    geometry = (pairs.sigma, pairs.sigma_next)
    settings = {"noise_level": rollout.noise_level, "sigma_max": sigma_max}
    reference = None
    if algorithm.kl_coefficient:
        with reference_weights(policy):
            velocity = policy.velocity(pairs.x, pairs.sigma, pairs.condition)
            reference = transition_of(pairs.x, velocity, *geometry, **settings)
    velocity = policy.velocity(pairs.x, pairs.sigma, pairs.condition)
    transition = transition_of(pairs.x, velocity, *geometry, **settings)
    logprob = LOGPROBS[rollout.transition](pairs.x_next, transition)
    advantage = pairs.advantage.clamp(-algorithm.max_advantage, algorithm.max_advantage)
    surrogate = clipped_surrogate(
        logprob,
        pairs.behaviour_logprob,
        advantage.to(logprob.dtype),
        clip_range=algorithm.clip_range,
    )
    loss = surrogate.per_pair.sum()
    kl = torch.zeros_like(loss)
    if reference is not None:
        if algorithm.kl == "gaussian":
            divergence = transition_kl(transition.mean, reference.mean, transition.std)
        else:
            step_size = pairs.sigma - pairs.sigma_next
            divergence = flowgrpo_kl(transition.mean, reference.mean, transition.std, step_size)
        kl = divergence.sum()
        loss = loss + algorithm.kl_coefficient * kl
    log_ratio = (logprob - pairs.behaviour_logprob).detach()
    if not (torch.isfinite(log_ratio).all() and torch.isfinite(loss)):
        raise FloatingPointError(
            f"the loss of a pack of {len(log_ratio)} pairs is not finite "
            f"(largest |log ratio| {float(log_ratio.abs().max())}); "
            "check rewards, learning rate and dtype."
        )
    metrics = PackMetrics(
        num_pairs=len(log_ratio),
        loss=float(loss.detach()),
        kl=float(kl.detach()),
        clipped=float(surrogate.clip_fraction) * len(log_ratio),
        approx_kl=float(surrogate.approx_kl) * len(log_ratio),
        max_log_ratio=float(log_ratio.abs().max()),
    )
    return loss / num_pairs_of_update, metrics
