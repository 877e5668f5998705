"""What each policy-gradient algorithm makes of replayed transitions: one loss per pair.

The maths is in digen_core/algorithms; here it meets the config.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from torch import Tensor

from digen_core.algorithms.correction import correction_weights
from digen_core.algorithms.flow_dppo import divergence_masked_surrogate
from digen_core.algorithms.flow_sde import Transition
from digen_core.algorithms.grpo import SurrogateLoss, clipped_surrogate
from digen_core.algorithms.grpo_guard import guarded_surrogate
from digen_core.algorithms.kl import scaled_kl, transition_kl
from digen_core.algorithms.longcat import step_weights
from digen_core.algorithms.mix_grpo import squared_log_ratio


class Replay(NamedTuple):
    """B pairs under the policy being trained and under the one that sampled."""

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


Objective = Callable[[Replay, Any], SurrogateLoss]


def clipped(replay: Replay, algorithm: Any) -> SurrogateLoss:
    """Return the clipped surrogate of FlowGRPO, DanceGRPO, MixGRPO and DDPO."""
    return clipped_surrogate(
        replay.logprob, replay.behaviour_logprob, replay.advantage, clip_range=algorithm.clip_range
    )


def guarded(replay: Replay, algorithm: Any) -> SurrogateLoss:
    """Return GRPO-Guard's surrogate of normalised ratios."""
    return guarded_surrogate(
        replay.logprob,
        replay.behaviour_logprob,
        replay.divergence,
        replay.transition.std.flatten(),
        replay.sigma - replay.sigma_next,
        replay.advantage,
        clip_range=algorithm.clip_range,
    )


def masked(replay: Replay, algorithm: Any) -> SurrogateLoss:
    """Return Flow-DPPO's surrogate without the pairs that leave the trust region."""
    return divergence_masked_surrogate(
        replay.logprob,
        replay.behaviour_logprob,
        replay.divergence,
        replay.advantage,
        threshold=algorithm.max_divergence,
    )


def reweighted(replay: Replay, algorithm: Any) -> SurrogateLoss:
    """Return LongCat-Video's clipped surrogate, weighted by the step."""
    found = clipped(replay, algorithm)
    weights = step_weights(replay.sigma, replay.sigma_next, sigma_max=replay.sigma_max)
    return found._replace(per_pair=found.per_pair * weights.policy)


OBJECTIVES: dict[str, Objective] = {
    "flow_grpo": clipped,
    "grpo_guard": guarded,
    "flow_dppo": masked,
    "dance_grpo": clipped,
    "mix_grpo": clipped,
    "ddpo": clipped,
    "longcat": reweighted,
}


def objective(replay: Replay, algorithm: Any) -> SurrogateLoss:
    """Return the algorithm's losses, corrected if it asks for that, with MixGRPO's penalty."""
    found = _corrected(replay, algorithm)
    if algorithm.type != "mix_grpo" or not algorithm.log_ratio_coefficient:
        return found
    penalty = squared_log_ratio(replay.logprob, replay.behaviour_logprob)
    return found._replace(per_pair=found.per_pair + algorithm.log_ratio_coefficient * penalty)


def _corrected(replay: Replay, algorithm: Any) -> SurrogateLoss:
    """Return the algorithm's losses, of the stored or of recomputed behaviour log-probs.

    With one update per iteration the trainer's own log-probs before the update are those of the
    forward that carries the gradient: to recompute them costs nothing.
    """
    if algorithm.correction == "none":
        return OBJECTIVES[algorithm.type](replay, algorithm)
    low, high = algorithm.correction_bounds
    weights = correction_weights(
        replay.logprob,
        replay.behaviour_logprob,
        mode=algorithm.correction,
        low=low,
        high=high,
    )
    own = replay._replace(
        behaviour_logprob=replay.logprob.detach(), behaviour_mean=replay.transition.mean.detach()
    )
    found = OBJECTIVES[algorithm.type](own, algorithm)
    return found._replace(per_pair=weights * found.per_pair)


def kl_penalty(replay: Replay, reference: Transition, algorithm: Any) -> Tensor:
    """Return [B] divergences from the reference policy's transition, as the algorithm scales it."""
    mean, std = replay.transition
    step_size = replay.sigma - replay.sigma_next
    divergence = scaled_kl(mean, reference.mean, std, step_size, scaling=algorithm.kl)
    if algorithm.type == "longcat":
        weights = step_weights(replay.sigma, replay.sigma_next, sigma_max=replay.sigma_max)
        divergence = divergence * weights.kl
    return divergence
