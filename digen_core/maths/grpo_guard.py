"""GRPO-Guard: ratios that are centred and scaled alike at every denoising step.

Source: GRPO-Guard (arXiv:2510.22319), RatioNorm and gradient reweighting. Under the noise that
sampled the step, the log-ratio has a negative mean, -bias, and a spread that falls with the step's
std; so the upper clip rarely binds, and late steps get most of the gradient. Hence

    bias  = mean over elements of (mean - behaviour_mean)^2 / (2 std^2)
    ratio = exp((logprob - behaviour_logprob + bias) * std)
    loss  = clipped surrogate of that ratio / step_size

Its gradient with respect to the velocity is, per element, the noise times 1 at pure noise and
1 + noise_level^2 / 2 elsewhere (for ``flow_sde``), whatever the step size. ``bias`` carries
gradient. Published settings: clip ranges 2e-6 (OCR, GenEval) and 4e-6 (PickScore).

Deviation: the published code averages bias, std and step_size over the batch as well (a mean over
an empty tuple of axes); the paper's are per trajectory, and so are these.
"""

from torch import Tensor

from digen_core.maths.grpo import SurrogateLoss, approximate_kl, clipped_surrogate
from digen_core.maths.tensors import float32_at_least, is_refuted


def guarded_surrogate(
    logprob: Tensor,
    behaviour_logprob: Tensor,
    bias: Tensor,
    std: Tensor,
    step_size: Tensor,
    advantages: Tensor,
    *,
    clip_range: float,
) -> SurrogateLoss:
    """Return the clipped surrogate of normalised ratios, reweighted by 1 / step_size.

    Args:
        logprob: [B] under the policy being trained; carries gradient.
        behaviour_logprob: [B] under the policy version that sampled.
        bias: [B] ``kl.transition_kl(mean, behaviour_mean, std)``; carries gradient.
        std: [B] or [B, 1, ...] of the transition.
        step_size: [B] sigma - sigma_next.
        advantages: [B].
        clip_range: half-width of the interval around normalised ratio 1.

    Returns:
        The loss; its ``ratio`` and ``clip_fraction`` are those of the normalised ratio, its
        ``approx_kl`` that of the plain one.
    """
    scale = std.flatten()
    if not logprob.shape == behaviour_logprob.shape == bias.shape == scale.shape == step_size.shape:
        raise ValueError(
            f"logprob {list(logprob.shape)}, behaviour_logprob {list(behaviour_logprob.shape)}, "
            f"bias {list(bias.shape)}, std {list(std.shape)} and step_size {list(step_size.shape)} "
            "must hold one number per pair, [B]"
        )
    if is_refuted(step_size > 0):
        raise ValueError(f"step_size ({step_size.min().item()}) must be positive")
    dtype = float32_at_least(logprob, behaviour_logprob)
    log_ratio = logprob.to(dtype) - behaviour_logprob.detach().to(dtype)
    normalised = (log_ratio + bias.to(dtype)) * scale.detach().to(dtype)
    surrogate = clipped_surrogate(
        normalised, normalised.new_zeros(normalised.shape), advantages, clip_range=clip_range
    )
    per_pair = surrogate.per_pair / step_size.to(dtype)
    return surrogate._replace(
        loss=per_pair.mean(), per_pair=per_pair, approx_kl=approximate_kl(log_ratio)
    )
