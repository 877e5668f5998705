"""Corrections for trajectories that another policy sampled than the one being trained.

Three policies see a step: *behaviour* sampled it (an older version, or the same in other
arithmetic), *proximal* is the version at the start of the update, recomputed by the trainer, and
*current* is being trained. The surrogate's ratio is current / proximal, and these factors correct
for proximal / behaviour (decoupled PPO, Hilton et al., arXiv:2110.00641):

    w = exp(proximal_logprob - behaviour_logprob)
    recompute  1                             no correction: behaviour is taken for proximal
    truncate   min(w, high)                  truncated importance sampling (TIS; IMPALA's
                                             rho, arXiv:1802.01561)
    icepop     w if low <= w <= high else 0  masked importance sampling (Ring-1T,
                                             arXiv:2510.18855)
    reject     1 if low <= w <= high else 0  rejection

Log-probs are means over a latent's elements, so w is the D-th root of the joint ratio, and bounds
such as [0.5, 2], published for tokens, hardly ever bind: watch the largest |log w|, and set the
bounds in its scale. Rejected pairs stay in the loss's denominator, so the gradient shrinks by their
share.
"""

import math

import torch
from torch import Tensor

from digen_core.maths.names import Correction
from digen_core.maths.tensors import float32_at_least


def correction_weights(
    proximal_logprob: Tensor,
    behaviour_logprob: Tensor,
    *,
    mode: Correction,
    low: float = 0.0,
    high: float,
) -> Tensor:
    """Return [B] factors of each pair's loss, without gradient; NaN where a log-ratio is no number.

    Args:
        proximal_logprob: [B] log-probs of steps, recomputed.
        behaviour_logprob: [B] as stored with the trajectories.
        mode: what to do with the ratios.
        low: smallest accepted ratio; "truncate" has none.
        high: largest accepted ratio.

    Raises:
        ValueError: if shapes do not match, or bounds are not positive.
    """
    if not 0 <= low < high:
        raise ValueError(f"bounds must be 0 <= low < high, got low {low} and high {high}")
    log_ratio = _log_ratio(proximal_logprob.detach(), behaviour_logprob.detach())
    ratio = log_ratio.exp()
    accepted = (ratio >= low) & (ratio <= high)
    match mode:
        case "recompute":
            factors = torch.ones_like(ratio)
        case "truncate":
            factors = ratio.clamp(max=high)
        case "icepop":
            factors = torch.where(accepted, ratio, 0.0)
        case "reject":
            factors = accepted.to(ratio.dtype)
        case _:
            raise ValueError(
                f"mode ({mode!r}) must be 'recompute', 'truncate', 'icepop' or 'reject'"
            )
    return torch.where(log_ratio.isfinite(), factors, math.nan)


def _log_ratio(proximal_logprob: Tensor, behaviour_logprob: Tensor) -> Tensor:
    if proximal_logprob.ndim != 1 or proximal_logprob.shape != behaviour_logprob.shape:
        raise ValueError(
            f"proximal_logprob {list(proximal_logprob.shape)} and behaviour_logprob "
            f"{list(behaviour_logprob.shape)} must have one shape [B]"
        )
    dtype = float32_at_least(proximal_logprob, behaviour_logprob)
    return proximal_logprob.to(dtype) - behaviour_logprob.to(dtype)
