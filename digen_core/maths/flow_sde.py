"""Stochastic samplers of a rectified flow, as Gaussian transition kernels p(x_next | x).

Conventions (diffusers' FlowMatchEulerDiscreteScheduler):
    x_sigma = (1 - sigma) * x_0 + sigma * noise,  sigma runs from 1 (noise) down to 0 (data),
    v(x, sigma) approximates E[noise - x_0 | x_sigma],  step_size = sigma - sigma_next > 0,
    predicted clean x_0 = x - sigma * v,  predicted noise = x + (1 - sigma) * v.

All but ``cps`` discretise the SDE of diffusion coefficient g that has the marginals of the ODE
(Flow-GRPO, arXiv:2505.05470, eq. 9; DanceGRPO, arXiv:2505.07818; LongCat-Video, arXiv:2510.22200,
section 3.3.1):
    mean = x - step_size * (v + g^2 / (2 * sigma) * (predicted noise)),  std = g * sqrt(step_size);
    flow_sde:    g = noise_level * sqrt(sigma / (1 - sigma)),
    longcat_sde: the same, but at most max_std / sqrt(step_size), hence std <= max_std,
    dance:       g = noise_level,
    wan_sde:     g = noise_level * sigma_max * sigma (Flow-GRPO's script for Wan 2.1).
``cps`` (Coefficients-Preserving Sampling, arXiv:2509.05952) is not of this form: it mixes predicted
clean, predicted noise and fresh noise such that the first has weight 1 - sigma_next and the two
noises have total variance sigma_next^2, exactly, whatever the step size:
    mean = (1 - sigma_next) * (predicted clean) + sqrt(sigma_next^2 - std^2) * (predicted noise),
    std = sigma_next * sin(noise_level * pi / 2).

Deviation: at pure noise g of ``flow_sde`` is infinite. The published code then puts the schedule's
second noise level into 1 - sigma, if sigma is *exactly* 1. Here it does so above 1 - 1e-6, as the
first sigma of a schedule may be rounded. Below that nothing is clamped: sigma = 0.9997 has g = 58
times the noise level. (``longcat_sde`` is the remedy.)

Axes: B trajectories, then one or more latent axes ([B, C, H, W] images, [B, C, F, H, W] videos,
[B, tokens, channels] packed). The maths is float32, or float64 where the latents are; half
precision is converted on entry. Values are checked where `is_refuted` looks at them: noise levels
that are numbers of Python's always are.
"""

import math
from collections.abc import Callable
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from digen_core.maths.tensors import (
    float32_at_least,
    is_refuted,
    per_trajectory,
    require_noise,
)

LONGCAT_MAX_STD = 0.45
_PURE_NOISE_ABOVE = 1 - 1e-6


class Transition(NamedTuple):
    """p(x_next | x) = N(mean, std^2 I)."""

    mean: Tensor  # [B, ...] as the latents
    std: Tensor  # [B, 1, ...]; 0 for a deterministic step


class TransitionFn(Protocol):
    """What every sampler of this module looks like."""

    def __call__(
        self,
        x: Tensor,
        velocity: Tensor,
        sigma: float | Tensor,
        sigma_next: float | Tensor,
        *,
        noise_level: float,
        sigma_max: float,
    ) -> Transition:
        """Return the distribution of the next latent.

        Args:
            x: [B, ...] current latent.
            velocity: [B, ...] model output at (x, sigma).
            sigma: current noise level in (0, 1], one number or [B].
            sigma_next: next noise level in [0, sigma], one number or [B].
            noise_level: how much noise the step adds; 0 gives the ODE's Euler step, with std 0.
            sigma_max: the schedule's second noise level; what for is the sampler's.
        """
        ...


def flow_sde_transition(
    x: Tensor,
    velocity: Tensor,
    sigma: float | Tensor,
    sigma_next: float | Tensor,
    *,
    noise_level: float,
    sigma_max: float,
) -> Transition:
    """Return Flow-GRPO's distribution of the next latent; arguments as in ``TransitionFn``.

    ``sigma_max`` stands in for sigma in 1 - sigma where sigma is 1.
    """
    x, velocity, sigma, sigma_next = _checked(x, velocity, sigma, sigma_next, noise_level)
    return _sde_transition(
        x, velocity, sigma, sigma_next, g=_flow_sde_g(sigma, noise_level, sigma_max)
    )


def longcat_transition(
    x: Tensor,
    velocity: Tensor,
    sigma: float | Tensor,
    sigma_next: float | Tensor,
    *,
    noise_level: float,
    sigma_max: float,
    max_std: float = LONGCAT_MAX_STD,
) -> Transition:
    """Return LongCat-Video's distribution of the next latent; arguments as in ``TransitionFn``.

    It is Flow-GRPO's with its std truncated to ``max_std``; the drift takes the g of that std, so
    that it stays an SDE with the marginals of the ODE. Published noise level: 1.
    """
    x, velocity, sigma, sigma_next = _checked(x, velocity, sigma, sigma_next, noise_level)
    g = _flow_sde_g(sigma, noise_level, sigma_max)
    g = torch.minimum(g, max_std / torch.sqrt(sigma - sigma_next))
    return _sde_transition(x, velocity, sigma, sigma_next, g=g)


def wan_transition(
    x: Tensor,
    velocity: Tensor,
    sigma: float | Tensor,
    sigma_next: float | Tensor,
    *,
    noise_level: float,
    sigma_max: float,
) -> Transition:
    """Return Flow-GRPO's distribution for Wan 2.1; arguments as in ``TransitionFn``.

    The published g, sigma_N + (sigma_1 - sigma_N) * sigma with sigma_N = 0, is that of
    ``noise_level`` 1. ``sigma_max`` is its sigma_1.
    """
    x, velocity, sigma, sigma_next = _checked(x, velocity, sigma, sigma_next, noise_level)
    return _sde_transition(x, velocity, sigma, sigma_next, g=noise_level * sigma_max * sigma)


def dance_transition(
    x: Tensor,
    velocity: Tensor,
    sigma: float | Tensor,
    sigma_next: float | Tensor,
    *,
    noise_level: float,
    sigma_max: float,
) -> Transition:
    """Return DanceGRPO's distribution of the next latent; arguments as in ``TransitionFn``.

    ``noise_level`` is the paper's eta; ``sigma_max`` is unused, as a constant g has no pole.
    """
    x, velocity, sigma, sigma_next = _checked(x, velocity, sigma, sigma_next, noise_level)
    return _sde_transition(x, velocity, sigma, sigma_next, g=torch.full_like(sigma, noise_level))


def cps_transition(
    x: Tensor,
    velocity: Tensor,
    sigma: float | Tensor,
    sigma_next: float | Tensor,
    *,
    noise_level: float,
    sigma_max: float,
) -> Transition:
    """Return Flow-CPS's distribution of the next latent; arguments as in ``TransitionFn``.

    ``noise_level`` 1 replaces all predicted noise by fresh noise. The last step (sigma_next 0) is
    deterministic at any noise level. ``sigma_max`` is unused, as nothing is divided by 1 - sigma.
    """
    x, velocity, sigma, sigma_next = _checked(x, velocity, sigma, sigma_next, noise_level)
    predicted_clean = x - sigma * velocity
    predicted_noise = x + (1 - sigma) * velocity
    fresh_share = math.sin(noise_level * math.pi / 2)
    kept = sigma_next * math.sqrt(1 - fresh_share**2)
    mean = (1 - sigma_next) * predicted_clean + kept * predicted_noise
    return Transition(mean, sigma_next * fresh_share)


def transition_logprob(x_next: Tensor, transition: Transition) -> Tensor:
    """Return [B] log-density of ``x_next``, averaged (not summed) over the latent axes.

    The mean is DDPO's convention, kept so that published clip ranges carry over. Multiply by the
    number of elements per trajectory for the joint log-density.

    Raises:
        ValueError: if a step is deterministic, hence without a log-density.
    """
    z, std = _deviation(x_next, transition)
    return (-0.5 * (z / std) ** 2 - torch.log(std)).flatten(1).mean(1) - 0.5 * math.log(2 * math.pi)


def cps_logprob(x_next: Tensor, transition: Transition) -> Tensor:
    """Return [B] minus the mean squared deviation of ``x_next`` from the transition's mean.

    Not a log-density, in spite of its published name: Flow-CPS drops the constants, which ratios do
    not see, and the factor 1 / (2 std^2), which they do. Kept because Flow-CPS's clip ranges are
    tuned to it.

    Raises:
        ValueError: if a step is deterministic: this number would be finite but meaningless.
    """
    deviation, std = _deviation(x_next, transition)
    meaningful = (std > 0).flatten()  # where nobody looked at it
    return torch.where(meaningful, -(deviation**2).flatten(1).mean(1), math.nan)


TRANSITIONS: dict[str, TransitionFn] = {
    "flow_sde": flow_sde_transition,
    "cps": cps_transition,
    "dance": dance_transition,
    "wan_sde": wan_transition,
    "longcat_sde": longcat_transition,
}

LOGPROBS: dict[str, Callable[[Tensor, Transition], Tensor]] = {
    "flow_sde": transition_logprob,
    "cps": cps_logprob,
    "dance": transition_logprob,
    "wan_sde": transition_logprob,
    "longcat_sde": transition_logprob,
}


def odds_root(sigma: Tensor, sigma_max: float) -> Tensor:
    """Return sqrt(sigma / (1 - sigma)), with ``sigma_max`` in 1 - sigma at pure noise.

    Raises:
        ValueError: if sigma is 1 somewhere and ``sigma_max`` is not between 0 and 1.
    """
    is_pure_noise = sigma > _PURE_NOISE_ABOVE
    if not 0 < sigma_max < 1 and bool(is_pure_noise.any()):
        raise ValueError(
            f"sigma_max ({sigma_max}) must lie between 0 and 1 where sigma is 1: pass the "
            "schedule's second sigma"
        )
    return torch.sqrt(sigma / (1 - torch.where(is_pure_noise, sigma_max, sigma)))


def _flow_sde_g(sigma: Tensor, noise_level: float, sigma_max: float) -> Tensor:
    if noise_level == 0:  # an ODE step needs no sigma_max
        return torch.zeros_like(sigma)
    return noise_level * odds_root(sigma, sigma_max)


def _sde_transition(
    x: Tensor, velocity: Tensor, sigma: Tensor, sigma_next: Tensor, *, g: Tensor
) -> Transition:
    step_size = sigma - sigma_next
    predicted_noise = x + (1 - sigma) * velocity  # -sigma times the score
    mean = x - step_size * (velocity + g**2 / (2 * sigma) * predicted_noise)
    return Transition(mean, g * torch.sqrt(step_size))


def _checked(
    x: Tensor,
    velocity: Tensor,
    sigma: float | Tensor,
    sigma_next: float | Tensor,
    noise_level: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the arguments in one float dtype, the noise levels as [B, 1, ...]."""
    if x.ndim < 2 or x.shape != velocity.shape:
        raise ValueError(
            f"x {list(x.shape)} and velocity {list(velocity.shape)} must have one shape [B, ...]"
        )
    if not noise_level >= 0:
        raise ValueError(f"noise_level ({noise_level}) must not be negative")
    dtype = float32_at_least(x, velocity)
    x, velocity = x.to(dtype), velocity.to(dtype)
    spread = per_trajectory(sigma, x), per_trajectory(sigma_next, x)
    here, after = (torch.as_tensor(level, dtype=dtype) for level in (sigma, sigma_next))
    # 1 + 1e-6 lets a rounded 1 pass, but no timestep of 0..1000
    if is_refuted((here > 0) & (here <= 1 + 1e-6) & (after >= 0) & (after <= here)):
        raise ValueError(
            f"a step must go from sigma in (0, 1] down to sigma_next in [0, sigma], got "
            f"{here.tolist()} to {after.tolist()}"
        )
    return x, velocity, *spread


def _deviation(x_next: Tensor, transition: Transition) -> tuple[Tensor, Tensor]:
    """Return x_next - mean and std, of a transition that has noise."""
    mean, std = transition
    if x_next.ndim < 2 or x_next.shape != mean.shape:
        raise ValueError(
            f"x_next {list(x_next.shape)} and mean {list(mean.shape)} must have one shape [B, ...]"
        )
    require_noise(std, mean)
    dtype = float32_at_least(x_next, mean)
    return x_next.to(dtype) - mean.to(dtype), std.to(dtype)
