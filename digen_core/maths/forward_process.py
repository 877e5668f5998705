"""The forward process, and the old policy of algorithms on it, which lags behind the trained one.

Sources: DiffusionNFT (arXiv:2509.16117) and AWM (arXiv:2509.25050), with the decays of their code.
After an iteration the old weights become decay * old + (1 - decay) * current.
"""

from typing import Final, NamedTuple

from torch import Tensor

from digen_core.maths.names import OldPolicyDecay
from digen_core.maths.tensors import float32_at_least, per_trajectory


class DecaySchedule(NamedTuple):
    """decay = min(rate * (updates - start), ceiling), 0 before start."""

    start: int
    rate: float
    ceiling: float


DECAY_SCHEDULES: Final[dict[OldPolicyDecay, DecaySchedule]] = {
    "none": DecaySchedule(0, 0.0, 0.0),  # the old policy is always the current one
    "ramp": DecaySchedule(0, 0.001, 0.5),
    "low_ramp": DecaySchedule(0, 0.001, 0.3),
    "late_ramp": DecaySchedule(75, 0.0075, 0.999),
}


def noised(x_0: Tensor, noise: Tensor, sigma: float | Tensor) -> Tensor:
    """Return [B, ...] latents of the forward process at ``sigma``, one number or [B]."""
    dtype = float32_at_least(x_0, noise)
    level = per_trajectory(sigma, x_0.to(dtype))
    return (1 - level) * x_0.to(dtype) + level * noise.to(dtype)


def old_policy_decay(num_updates: int, schedule: OldPolicyDecay) -> float:
    """Return the share of the old weights that stays after the iteration.

    Args:
        num_updates: optimizer steps so far.
        schedule: a name of ``DECAY_SCHEDULES``: "none" (DiffusionNFT's decay type 0), "ramp" (1),
            "late_ramp" (2) or "low_ramp" (AWM's).
    """
    if schedule not in DECAY_SCHEDULES:
        raise ValueError(f"schedule ({schedule!r}) must be one of {sorted(DECAY_SCHEDULES)}")
    start, rate, ceiling = DECAY_SCHEDULES[schedule]
    return min(rate * max(num_updates - start, 0), ceiling)
