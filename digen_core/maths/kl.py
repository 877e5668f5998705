"""Distance of a policy's transition from the reference policy's, in two scalings.

Both policies take a step from the same x with the same noise, so their transitions are Gaussians of
one std and KL(current || reference) is, per element, (mean - mean_reference)^2 / (2 std^2)
(Flow-GRPO, arXiv:2505.05470).

Deviation of the published code from the paper: for images it divides by 2 g^2, where g is the
diffusion coefficient, std = g * sqrt(step_size). ``flowgrpo_kl`` is that quantity, ``step_size``
times the true KL. Published KL coefficients for images belong to it; those for Wan videos belong to
``transition_kl``.

Axes: B trajectories, then one or more latent axes, over which both functions *average*, as
``transition_logprob`` does. The maths is float32, or float64 where the means are.
"""

from torch import Tensor

from digen_core.maths.names import KlScaling
from digen_core.maths.tensors import float32_at_least, per_trajectory, require_noise


def transition_kl(mean: Tensor, mean_reference: Tensor, std: Tensor) -> Tensor:
    """Return [B] KL divergence of two equal-std Gaussian transitions, per latent element.

    Args:
        mean: [B, ...] of the policy being trained; carries gradient.
        mean_reference: [B, ...] of the reference policy, at the same x.
        std: [B, 1, ...] of both.

    Raises:
        ValueError: if a step is deterministic, hence without a divergence.
    """
    if mean.ndim < 2 or mean.shape != mean_reference.shape:
        raise ValueError(
            f"mean {list(mean.shape)} and mean_reference {list(mean_reference.shape)} must have "
            "one shape [B, ...]"
        )
    require_noise(std, mean)
    dtype = float32_at_least(mean, mean_reference)
    z = (mean.to(dtype) - mean_reference.to(dtype)) / std.to(dtype)
    return (z**2 / 2).flatten(1).mean(1)


def flowgrpo_kl(
    mean: Tensor, mean_reference: Tensor, std: Tensor, step_size: float | Tensor
) -> Tensor:
    """Return [B] Flow-GRPO's KL penalty: ``step_size`` times the true divergence.

    Args:
        mean: [B, ...] of the policy being trained; carries gradient.
        mean_reference: [B, ...] of the reference policy, at the same x.
        std: [B, 1, ...] of both.
        step_size: sigma - sigma_next, one number or [B].
    """
    divergence = transition_kl(mean, mean_reference, std)
    return per_trajectory(step_size, divergence) * divergence


def scaled_kl(
    mean: Tensor,
    mean_reference: Tensor,
    std: Tensor,
    step_size: float | Tensor,
    *,
    scaling: KlScaling,
) -> Tensor:
    """Return [B] of the divergence that ``scaling`` names; the others as in ``flowgrpo_kl``."""
    if scaling == "gaussian":
        return transition_kl(mean, mean_reference, std)
    return flowgrpo_kl(mean, mean_reference, std, step_size)
