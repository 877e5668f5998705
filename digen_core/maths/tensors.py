"""Dtypes and shapes of what the formulas take: B trajectories, then latent axes."""

from typing import Final

import torch
from torch import Tensor

TORCH_DTYPES: Final = {
    "float64": torch.float64,
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
"""The precisions that models compute in, by their names in a config."""


def float32_at_least(*tensors: Tensor) -> torch.dtype:
    """Return the dtype in which to combine ``tensors``: float32, or float64 if any of them is."""
    dtype = torch.float32
    for tensor in tensors:
        dtype = torch.promote_types(dtype, tensor.dtype)
    return dtype


def per_trajectory(value: float | Tensor, like: Tensor) -> Tensor:
    """Return one number or [B] numbers as [B, 1, ...], with ``like``'s rank, dtype and device."""
    if isinstance(value, Tensor) and (value.ndim or value.device == like.device):
        numbers = value.to(like.device, like.dtype)
    else:  # of the host: filled, as a copy would wait for the device
        numbers = torch.full((), float(value), dtype=like.dtype, device=like.device)
    if numbers.shape not in ((), like.shape[:1]):
        raise ValueError(
            f"expected one number or one per trajectory ({len(like)}), got {list(numbers.shape)}"
        )
    return numbers.expand(len(like)).reshape(-1, *[1] * (like.ndim - 1))


def is_refuted(condition: Tensor) -> bool:
    """Say whether a condition on numbers is known not to hold everywhere.

    What an accelerator has is not looked at: that would wait for all that it computes, and let it
    wait for what is launched then. Numbers there come from the host, which looks at its own, or
    what is made of them is NaN.
    """
    return condition.device.type == "cpu" and not bool(condition.all())


def require_noise(std: Tensor, mean: Tensor) -> None:
    """Raise ValueError unless ``std`` is positive and of ``mean``'s rank, or one number.

    Whether it is positive is looked at where `is_refuted` does.
    """
    if std.ndim not in (0, mean.ndim):
        raise ValueError(
            f"std {list(std.shape)} must have the rank of mean {list(mean.shape)}, as [B, 1, ...]"
        )
    if is_refuted(std > 0):  # a NaN fails as well
        raise ValueError(
            f"std {std.min().item()} is not positive: a deterministic step has no log-density; "
            "train only steps with noise"
        )
