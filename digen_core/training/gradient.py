"""The loss of one pack: replay stored transitions under the current policy.

A pair is one sample at one trained step; a pack is any set of pairs, of different samples and
steps, in one forward and backward. The loss is a *sum* over pairs divided by the number of pairs of
the whole update, fixed in advance: packs of any size, in any order, add up to the same gradient.
Where trajectories have unequal numbers of steps, a pair weighs more the fewer of them are trained.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from math import isfinite, nan, sqrt

import numpy as np
import torch
from torch import Tensor

from digen_core.algorithms.forward_process import ForwardProcess
from digen_core.algorithms.policy_gradient import PolicyGradient
from digen_core.config.run import RunConfig
from digen_core.inputs.text import number_of
from digen_core.maths.flow_sde import LOGPROBS, TRANSITIONS, Transition
from digen_core.maths.replay import Noised, Replay
from digen_core.models.policy import Policy
from digen_core.models.trainable import reference_weights
from digen_core.training.pairs import CleanPairs, Pairs

_REPLAY_ERRORS = {"float64": 1e-5, "float32": 1e-5, "bfloat16": 1e-2, "float16": 1e-2}
_REPLAY_ERROR_OF_FLOAT8 = 5e-2  # 3e-4 to 7e-3 by step, of the model of the job shapes


@dataclass(frozen=True, slots=True)
class Agreement:
    """How alike two gradients are: products of their numbers, summed."""

    both: float = 0.0
    coded: float = 0.0  # of the one with coded cuts with itself
    uncoded: float = 0.0

    @property
    def cosine(self) -> float | None:
        """Between -1 and 1: 0 where one of them is 0; None if both are, or nothing was compared."""
        if not (self.coded or self.uncoded):
            return None
        scale = sqrt(self.coded * self.uncoded)
        return self.both / scale if scale else 0.0

    def __add__(self, other: "Agreement") -> "Agreement":
        """Return that of the gradients one after the other."""
        return Agreement(
            self.both + other.both, self.coded + other.coded, self.uncoded + other.uncoded
        )


@dataclass(frozen=True, slots=True)
class PackMetrics:
    """Sums over the pairs of a pack, for means over the update, then maxima."""

    num_pairs: int = 0
    loss: float = 0.0
    kl: float = 0.0
    clipped: float = 0.0
    approx_kl: float = 0.0
    max_log_ratio: float = 0.0  # largest |log ratio|
    replay_errors: Mapping[str, float] = field(default_factory=dict)
    """The same, of pairs that the trained version sampled itself, by the device that did."""

    num_own: int = 0  # those pairs
    own_log_ratios: float = 0.0  # |log ratio| of them

    agreement: Agreement = Agreement()
    """Of the gradients of first packs, with coded cuts and without."""

    num_stale: int = 0  # pairs that an older version sampled than their iteration began with
    stale_clipped: float = 0.0  # of those
    nonfinite: str = ""  # what is NaN or infinite, if anything is: then these are no numbers

    @property
    def replay_error(self) -> float | None:
        """The largest of all devices; None if the trained version sampled no pair."""
        return float(np.max(list(self.replay_errors.values()))) if self.replay_errors else None

    @property
    def mean_replay_error(self) -> float | None:
        """The mean over those pairs; None if there are none."""
        return self.own_log_ratios / self.num_own if self.num_own else None


Read = Callable[[], PackMetrics]
"""Gives the metrics of a loss. It waits for the device: to be called when the backward pass is
launched, or the device would wait for that in turn."""


def pack_loss(policy: Policy, pairs: Pairs | CleanPairs, config: RunConfig) -> tuple[Tensor, Read]:
    """Return the scalar to differentiate and what to plot.

    One that is NaN or infinite is returned as it is, and named in the metrics (``nonfinite``).

    Args:
        policy: with the weights to train.
        pairs: of the pack, as `pairs.rows_of` returns them.
        config: of the run.
    """
    assert not pairs.condition_of, "whose condition each has is not looked at here"
    policy = policy.in_training()
    pairs = replace(pairs, condition=policy.without_padding(pairs.condition))
    if isinstance(pairs, CleanPairs):
        assert isinstance(config.algorithm, ForwardProcess)
        loss, read = _forward_loss(policy, pairs, config.algorithm)
    else:
        assert isinstance(config.algorithm, PolicyGradient)
        loss, read = _replay_loss(policy, pairs, config, config.algorithm)
    return pairs.weight * loss / config.pairs_per_update, read


def _named(metrics: PackMetrics) -> PackMetrics:
    """Return metrics that say so if their loss or a log-ratio is NaN or infinite."""
    if isfinite(metrics.loss) and isfinite(metrics.max_log_ratio):
        return metrics
    text = (
        f"the loss of {number_of(metrics.num_pairs, 'pair')} is NaN or infinite "
        f"(largest |log ratio| {metrics.max_log_ratio:g})"
    )
    return replace(metrics, nonfinite=text)


def _on_host(values: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return numbers of a device on the CPU: of one copy, as the host waits for each."""
    flat = [value.detach().double().flatten() for value in values.values()]
    parts = torch.cat(flat).cpu().split([len(part) for part in flat])
    return {
        name: part.to(value.dtype).reshape(value.shape)
        for part, (name, value) in zip(parts, values.items(), strict=True)
    }


def _replay_loss(
    policy: Policy, pairs: Pairs, config: RunConfig, algorithm: PolicyGradient
) -> tuple[Tensor, Read]:
    """Sum the algorithm's losses over sampled transitions."""
    reference = None
    if algorithm.kl_coefficient:
        reference = _transition(pairs, _reference_velocity(policy, pairs), config)
    transition = transition_of(policy, pairs, config)
    logprob = LOGPROBS[config.rollout.transition](pairs.x_next, transition)
    log_ratio = (logprob - pairs.behaviour_logprob).detach().abs()
    replay = _replay(pairs, transition, logprob, config)
    found = algorithm.losses(replay)
    loss = found.per_pair.sum()
    kl = torch.zeros_like(loss)
    if reference is not None:
        kl = algorithm.divergence(replay, reference).sum()
        loss = loss + algorithm.kl_coefficient * kl
    # clipped, a log-ratio that is no number could look like one
    loss = loss * torch.where(log_ratio.isfinite().all(), 1.0, nan)
    measured = {
        "loss": loss.detach(),
        "kl": kl.detach(),
        "approx_kl": found.approx_kl,
        "clipped": found.clipped,
        "log_ratio": log_ratio,
        "is_own": pairs.is_own,
        "is_stale": pairs.is_stale,
    }
    return loss, partial(_replay_metrics, measured, pairs.sampled_by)


def _replay_metrics(measured: Mapping[str, Tensor], sampled_by: tuple[str, ...]) -> PackMetrics:
    """Return the metrics of what was measured of a pack, by names of this module."""
    own = _on_host(measured)
    log_ratio, clipped, is_own = own["log_ratio"], own["clipped"], own["is_own"]
    number, largest = len(log_ratio), float(log_ratio.max())
    if not isfinite(largest):
        return _named(PackMetrics(num_pairs=number, max_log_ratio=largest))
    return _named(
        PackMetrics(
            num_pairs=number,
            loss=float(own["loss"]),
            kl=float(own["kl"]),
            clipped=float(clipped.sum()),
            num_stale=int(own["is_stale"].sum()),
            stale_clipped=float((clipped & own["is_stale"]).sum()),
            approx_kl=float(own["approx_kl"]) * number,
            max_log_ratio=largest,
            replay_errors=_replay_errors(log_ratio, is_own, sampled_by),
            num_own=int(is_own.sum()),
            own_log_ratios=float(log_ratio[is_own].sum()),
        )
    )


def _replay(pairs: Pairs, transition: Transition, logprob: Tensor, config: RunConfig) -> Replay:
    """Return pairs as losses take them, under the policy being trained."""
    behaviour_mean = proximal_mean = proximal_logprob = None
    if pairs.noise is not None:
        behaviour_mean = pairs.x_next - transition.std * pairs.noise
    if pairs.start_velocity is not None:
        proximal = _transition(pairs, pairs.start_velocity, config)
        proximal_mean = proximal.mean
        proximal_logprob = LOGPROBS[config.rollout.transition](pairs.x_next, proximal)
    return Replay(
        transition,
        logprob,
        behaviour_mean,
        pairs.behaviour_logprob,
        pairs.advantage.to(logprob.dtype),
        pairs.sigma,
        pairs.sigma_next,
        pairs.sigma_max,
        proximal_mean,
        proximal_logprob,
    )


def _replay_errors(
    log_ratio: Tensor, is_own: Tensor, sampled_by: tuple[str, ...]
) -> dict[str, float]:
    """Return the largest |log ratio| [b] of what the trained version sampled, by device."""
    devices = sampled_by or ("an unknown device",) * len(log_ratio)
    rows = zip(devices, log_ratio.tolist(), is_own.tolist(), strict=True)
    return _largest((device, ratio) for device, ratio, own in rows if own)


def _largest(found: Iterable[tuple[str, float]]) -> dict[str, float]:
    """Return the largest number of each name; NaN, if one is."""
    largest: dict[str, float] = {}
    for name, value in found:
        largest[name] = float(np.max([value, largest.get(name, value)]))
    return largest


def transition_of(policy: Policy, pairs: Pairs, config: RunConfig) -> Transition:
    """Return the distribution that the policy's weights give the next latent."""
    return _transition(pairs, policy.velocity(pairs.x, pairs.sigma, pairs.condition), config)


def _transition(pairs: Pairs, velocity: Tensor, config: RunConfig) -> Transition:
    return TRANSITIONS[config.rollout.transition](
        pairs.x,
        velocity,
        pairs.sigma,
        pairs.sigma_next,
        noise_level=config.rollout.noise_level,
        sigma_max=pairs.sigma_max,
    )


def _forward_loss(
    policy: Policy, pairs: CleanPairs, algorithm: ForwardProcess
) -> tuple[Tensor, Read]:
    """Sum the algorithm's losses over noised clean latents.

    In an iteration's first update, without an old policy that lags behind, the trained version is
    what generated: that velocity is the current one's, detached.
    """
    x, reference = pairs.x, None
    if algorithm.kl_coefficient:
        reference = _reference_velocity(policy, pairs)
    velocity = policy.velocity(x, pairs.sigma, pairs.condition)
    start = velocity.detach() if pairs.start_velocity is None else pairs.start_velocity
    found = algorithm.losses(
        Noised(velocity, start, reference, x, pairs.noise, pairs.x_0, pairs.sigma, pairs.advantage)
    )
    loss = found.per_pair.sum()
    measured = {"loss": loss.detach(), "kl": found.reference.sum()}
    if found.surrogate is not None:
        ratios, numbers = found.surrogate, torch.finfo(found.surrogate.ratio.dtype)
        finite = ratios.ratio.clamp(numbers.tiny, numbers.max)  # a metric has to be a number
        measured |= {
            "clipped": ratios.clipped.sum(),
            "approx_kl": ratios.approx_kl,
            "max_log_ratio": finite.log().abs().max(),
        }
    return loss, partial(_forward_metrics, measured, len(x))


def _forward_metrics(measured: Mapping[str, Tensor], num_pairs: int) -> PackMetrics:
    """Return the metrics of what was measured of a pack, by their names."""
    own = {name: float(value) for name, value in _on_host(measured).items()}
    return _named(
        PackMetrics(
            num_pairs=num_pairs,
            loss=own["loss"],
            kl=own["kl"],
            clipped=own.get("clipped", 0.0),
            approx_kl=own.get("approx_kl", 0.0) * num_pairs,
            max_log_ratio=own.get("max_log_ratio", 0.0),
        )
    )


def _reference_velocity(policy: Policy, pairs: Pairs | CleanPairs) -> Tensor:
    """Return the reference policy's velocity [b, ...]; who generated may have asked for it."""
    if pairs.reference_velocity is not None:
        return pairs.reference_velocity
    with reference_weights(policy) as reference:
        return reference.velocity(pairs.x, pairs.sigma, pairs.condition)


def replay_failure(metrics: PackMetrics, config: RunConfig) -> str:
    """Return what is wrong with the replay of pairs that the trained version sampled, or nothing.

    It differs from the rollout by more than ``train.max_replay_error``.
    """
    is_low = config.rollout.precision == "float8"
    usual = _REPLAY_ERROR_OF_FLOAT8 if is_low else _REPLAY_ERRORS[config.model.dtype]
    bound = config.train.max_replay_error or usual
    for device, error in metrics.replay_errors.items():
        if not error <= bound:
            return (
                f"replayed with the weights that sampled them by {device}, log-probs differ by "
                f"up to {error:.2g}, more than train.max_replay_error ({bound:g}): rollout and "
                "trainer compute differently; use one dtype and attention kernel on all workers, "
                "or raise the bound."
            )
    return ""


def add_metrics(left: PackMetrics, right: PackMetrics) -> PackMetrics:
    """Return the sums and maxima over two packs."""
    errors = chain(left.replay_errors.items(), right.replay_errors.items())
    return replace(
        left,
        num_pairs=left.num_pairs + right.num_pairs,
        loss=left.loss + right.loss,
        kl=left.kl + right.kl,
        clipped=left.clipped + right.clipped,
        num_stale=left.num_stale + right.num_stale,
        stale_clipped=left.stale_clipped + right.stale_clipped,
        approx_kl=left.approx_kl + right.approx_kl,
        max_log_ratio=float(np.max([left.max_log_ratio, right.max_log_ratio])),
        replay_errors=_largest(errors),
        num_own=left.num_own + right.num_own,
        own_log_ratios=left.own_log_ratios + right.own_log_ratios,
        agreement=left.agreement + right.agreement,
        nonfinite=left.nonfinite or right.nonfinite,
    )
