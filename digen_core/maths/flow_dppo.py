"""Flow-DPPO: a trust region by the divergence of the step in place of clipped ratios.

Source: Flow-DPPO (arXiv:2606.11025): the exact divergence of two Gaussians of one std (eq. 14) and
the asymmetric mask (eq. 18). A ratio is one noisy sample of how far the policy has moved; between
two transitions of one std that is known exactly, as ``kl.transition_kl``:

    divergence = mean over elements of (mean - behaviour_mean)^2 / (2 std^2)
    blocked    = divergence > threshold and (advantage > 0 and ratio > 1
                                             or advantage < 0 and ratio < 1)
    loss       = mean of -advantage * ratio, 0 where blocked

A step that has moved too far is blocked only if its gradient would move it further; a step back is
always allowed. Published threshold: 1e-5, for this mean over elements.

Deviation from the paper: it sums over elements; its code and this take the mean, as the log-probs
do. With one update per iteration the divergence is 0 and nothing is blocked.
"""

import torch
from torch import Tensor

from digen_core.maths.grpo import SurrogateLoss, approximate_kl
from digen_core.maths.tensors import float32_at_least


def divergence_masked_surrogate(
    logprob: Tensor,
    behaviour_logprob: Tensor,
    divergence: Tensor,
    advantages: Tensor,
    *,
    threshold: float,
) -> SurrogateLoss:
    """Return the importance-weighted surrogate without the pairs that leave the trust region.

    Args:
        logprob: [B] under the policy being trained; carries gradient.
        behaviour_logprob: [B] under the policy version that sampled.
        divergence: [B] ``kl.transition_kl(mean, behaviour_mean, std)``; only compared.
        advantages: [B].
        threshold: largest divergence, in nats per element, at which any gradient passes.

    Returns:
        The loss; its ``clip_fraction`` is the share of blocked pairs.
    """
    if not logprob.shape == behaviour_logprob.shape == divergence.shape == advantages.shape:
        raise ValueError(
            f"logprob {list(logprob.shape)}, behaviour_logprob {list(behaviour_logprob.shape)}, "
            f"divergence {list(divergence.shape)} and advantages {list(advantages.shape)} must "
            "have one shape [B]"
        )
    dtype = float32_at_least(logprob, behaviour_logprob)
    log_ratio = logprob.to(dtype) - behaviour_logprob.detach().to(dtype)
    fixed = advantages.detach().to(dtype)
    moves_away = log_ratio.detach() * fixed > 0
    blocked = (divergence.detach() > threshold) & moves_away
    ratio = log_ratio.exp()
    per_pair = torch.where(blocked, 0.0, -fixed * ratio)
    return SurrogateLoss(
        loss=per_pair.mean(),
        per_pair=per_pair,
        ratio=ratio.detach(),
        clipped=blocked,
        approx_kl=approximate_kl(log_ratio),
    )
