"""The loss of one pack: replay stored transitions under the current policy.

A pair is one sample at one trained step; a pack is any set of pairs, of different samples and
steps, in one forward and backward. The loss is a *sum* over pairs divided by the number of pairs of
the whole update, fixed in advance: packs of any size, in any order, add up to the same gradient.
"""

from dataclasses import dataclass, replace
from math import isfinite, nan

import numpy as np
import torch
from torch import Tensor

from digen_core.algorithms.forward_process import ForwardProcess
from digen_core.algorithms.policy_gradient import PolicyGradient
from digen_core.config.run import RunConfig
from digen_core.maths.flow_sde import LOGPROBS, TRANSITIONS, Transition
from digen_core.maths.replay import Noised, Replay
from digen_core.models.policy import Policy
from digen_core.models.trainable import reference_weights
from digen_core.training.pairs import CleanPairs, Pairs

_REPLAY_ERRORS = {"float64": 1e-5, "float32": 1e-5, "bfloat16": 1e-2, "float16": 1e-2}


@dataclass(frozen=True, slots=True)
class PackMetrics:
    """Sums over the pairs of a pack, for means over the update, then two maxima."""

    num_pairs: int = 0
    loss: float = 0.0
    kl: float = 0.0
    clipped: float = 0.0
    approx_kl: float = 0.0
    max_log_ratio: float = 0.0  # largest |log ratio|
    replay_error: float | None = None  # the same, of pairs that the trained version sampled itself
    nonfinite: str = ""  # what is NaN or infinite, if anything is: then these are no numbers


def pack_loss(
    policy: Policy, pairs: Pairs | CleanPairs, config: RunConfig
) -> tuple[Tensor, PackMetrics]:
    """Return the scalar to differentiate and what to plot.

    One that is NaN or infinite is returned as it is, and named in the metrics (``nonfinite``).

    Args:
        policy: with the weights to train.
        pairs: of the pack.
        config: of the run.

    Raises:
        FloatingPointError: the replay of pairs that this version sampled differs from the rollout
            by more than ``train.max_replay_error``.
    """
    pairs = replace(pairs, condition=policy.without_padding(pairs.condition))
    if isinstance(pairs, CleanPairs):
        assert isinstance(config.algorithm, ForwardProcess)
        loss, metrics = _forward_loss(policy, pairs, config.algorithm)
    else:
        assert isinstance(config.algorithm, PolicyGradient)
        loss, metrics = _replay_loss(policy, pairs, config, config.algorithm)
    if not torch.isfinite(loss):
        text = (
            f"the loss of {metrics.num_pairs} pairs is NaN or infinite (largest |log ratio| "
            f"{metrics.max_log_ratio:g})"
        )
        metrics = replace(metrics, nonfinite=text)
    elif metrics.replay_error is not None:
        _check_replay(metrics.replay_error, config)
    return loss / config.num_pairs, metrics


def _replay_loss(
    policy: Policy, pairs: Pairs, config: RunConfig, algorithm: PolicyGradient
) -> tuple[Tensor, PackMetrics]:
    """Sum the algorithm's losses over sampled transitions."""
    reference = None
    if algorithm.kl_coefficient:
        with reference_weights(policy):
            reference = _transition(policy, pairs, config)
    transition = _transition(policy, pairs, config)
    logprob = LOGPROBS[config.rollout.transition](pairs.x_next, transition)
    log_ratio = (logprob - pairs.behaviour_logprob).detach().abs()
    largest = float(log_ratio.max())
    if not isfinite(largest):  # clipped, it could look like a number
        return nan * logprob.sum(), PackMetrics(num_pairs=len(log_ratio), max_log_ratio=largest)
    behaviour_mean = None
    if pairs.noise is not None:
        behaviour_mean = pairs.x_next - transition.std * pairs.noise
    replay = Replay(
        transition,
        logprob,
        behaviour_mean,
        pairs.behaviour_logprob,
        pairs.advantage.to(logprob.dtype),
        pairs.sigma,
        pairs.sigma_next,
        pairs.sigma_max,
    )
    found = algorithm.losses(replay)
    loss = found.per_pair.sum()
    kl = torch.zeros_like(loss)
    if reference is not None:
        kl = algorithm.divergence(replay, reference).sum()
        loss = loss + algorithm.kl_coefficient * kl
    own = log_ratio[pairs.is_own]
    return loss, PackMetrics(
        num_pairs=len(log_ratio),
        loss=float(loss.detach()),
        kl=float(kl.detach()),
        clipped=float(found.clip_fraction) * len(log_ratio),
        approx_kl=float(found.approx_kl) * len(log_ratio),
        max_log_ratio=largest,
        replay_error=float(own.max()) if len(own) else None,
    )


def _transition(policy: Policy, pairs: Pairs, config: RunConfig) -> Transition:
    """Return the distribution that the policy's weights give the next latent."""
    return TRANSITIONS[config.rollout.transition](
        pairs.x,
        policy.velocity(pairs.x, pairs.sigma, pairs.condition),
        pairs.sigma,
        pairs.sigma_next,
        noise_level=config.rollout.noise_level,
        sigma_max=pairs.sigma_max,
    )


def _forward_loss(
    policy: Policy, pairs: CleanPairs, algorithm: ForwardProcess
) -> tuple[Tensor, PackMetrics]:
    """Sum the algorithm's losses over noised clean latents.

    Without an old policy that lags behind, the version before the update is the old one: its
    velocity is the current one's, detached.
    """
    x, reference = pairs.x, None
    if algorithm.kl_coefficient:
        with reference_weights(policy):
            reference = policy.velocity(x, pairs.sigma, pairs.condition)
    velocity = policy.velocity(x, pairs.sigma, pairs.condition)
    old = velocity.detach() if pairs.old_velocity is None else pairs.old_velocity
    replay = Noised(velocity, old, reference, x, pairs.x_0, pairs.sigma, pairs.advantage)
    found = algorithm.losses(replay)
    loss = found.per_pair.sum()
    kl = float(found.reference.sum())
    return loss, PackMetrics(num_pairs=len(x), loss=float(loss.detach()), kl=kl)


def _check_replay(error: float, config: RunConfig) -> None:
    bound = config.train.max_replay_error or _REPLAY_ERRORS[config.model.dtype]
    if not error <= bound:
        raise FloatingPointError(
            f"replayed with the weights that sampled them, log-probs differ by up to {error:.2g}, "
            f"more than train.max_replay_error ({bound:g}): rollout and trainer compute "
            "differently; use one dtype and attention kernel on all workers, or raise the bound."
        )


def add_metrics(left: PackMetrics, right: PackMetrics) -> PackMetrics:
    """Return the sums and maxima over two packs."""
    errors = [part.replay_error for part in (left, right) if part.replay_error is not None]
    return replace(
        left,
        num_pairs=left.num_pairs + right.num_pairs,
        loss=left.loss + right.loss,
        kl=left.kl + right.kl,
        clipped=left.clipped + right.clipped,
        approx_kl=left.approx_kl + right.approx_kl,
        max_log_ratio=float(np.max([left.max_log_ratio, right.max_log_ratio])),
        replay_error=float(np.max(errors)) if errors else None,
        nonfinite=left.nonfinite or right.nonfinite,
    )
