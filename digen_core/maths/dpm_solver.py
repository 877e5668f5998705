"""DPM-Solver++(2M) for rectified flows: noiseless steps of second order, at no further cost.

Source: DPM-Solver++ (arXiv:2211.01095), algorithm 2, midpoint; the code of MixGRPO-Flash
(arXiv:2507.21802) and of DiffusionNFT (arXiv:2509.16117) takes it to flows, as does diffusers'
DPMSolverMultistepScheduler with flow sigmas. With lambda(sigma) = ln((1 - sigma) / sigma), the
steps h_0 = lambda(sigma) - lambda(sigma_before) and h = lambda(sigma_next) - lambda(sigma), and the
predicted clean latents m = x - sigma * v of this step and m_before of the one before,

    x_next = sigma_next / sigma * x - (1 - sigma_next) * (exp(-h) - 1) * (m + D),
    D = h / (2 h_0) * (m - m_before).

As exp(-h) = sigma_next (1 - sigma) / (sigma (1 - sigma_next)), that is the Euler step plus

    (1 - sigma_next / sigma) * D,

which is how it is computed here. D is 0 where the step before began at pure noise (h_0 is
infinite), and is left out in the step to sigma_next = 0 (h is), which is of first order as
published.
"""

import torch
from torch import Tensor

from digen_core.maths.tensors import float32_at_least, per_trajectory


def predicted_clean(x: Tensor, velocity: Tensor, sigma: float | Tensor) -> Tensor:
    """Return the clean latents [B, ...] that velocities predict; ``sigma`` is one number or [B]."""
    dtype = float32_at_least(x, velocity)
    level = per_trajectory(sigma, x.to(dtype))
    return x.to(dtype) - level * velocity.to(dtype)


def second_order_step(
    x_euler: Tensor,
    clean: Tensor,
    clean_before: Tensor,
    *,
    sigma_before: float | Tensor,
    sigma: float | Tensor,
    sigma_next: float | Tensor,
) -> Tensor:
    """Return the latents [B, ...] after a step, of which the Euler step is known.

    Args:
        x_euler: [B, ...] after the Euler step.
        clean: [B, ...] predicted at ``sigma``, before the step.
        clean_before: [B, ...] predicted at ``sigma_before``, whatever that step then added.
        sigma_before: noise level of the step before, in (0, 1], one number or [B].
        sigma: of this step, below it.
        sigma_next: after it, in [0, sigma].

    Raises:
        ValueError: shapes do not match, or noise levels do not fall.
    """
    if not x_euler.shape == clean.shape == clean_before.shape:
        raise ValueError(
            f"x_euler {list(x_euler.shape)}, clean {list(clean.shape)} and clean_before "
            f"{list(clean_before.shape)} must have one shape [B, ...]"
        )
    dtype = float32_at_least(x_euler, clean, clean_before)
    x = x_euler.to(dtype)
    before, here, after = (_on_host(level) for level in (sigma_before, sigma, sigma_next))
    if not bool(((before > here) & (here >= after) & (after >= 0) & (here > 0)).all()):
        levels = ", ".join(str(level.tolist()) for level in (before, here, after))
        raise ValueError(f"noise levels must fall, to 0 at the lowest, got {levels}")
    step, step_before = _log_odds(after) - _log_odds(here), _log_odds(here) - _log_odds(before)
    factor = (1 - after / here) * step / (2 * step_before)
    factor = torch.where(after == 0, torch.zeros_like(factor), factor)
    return x + per_trajectory(factor, x) * (clean.to(dtype) - clean_before.to(dtype))


def _on_host(sigma: float | Tensor) -> Tensor:
    """Return noise levels in float64, which not every device has."""
    return torch.as_tensor(sigma).cpu().double()


def _log_odds(sigma: Tensor) -> Tensor:
    """Return lambda: -infinity at pure noise, which a schedule's first level may be rounded to."""
    return torch.log((1 - sigma).clamp(min=0) / sigma)
