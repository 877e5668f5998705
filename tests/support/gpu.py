"""Tests that run on a GPU where there is one, and the same on a CPU at a smaller size."""

from collections.abc import Callable
from typing import Any, Final

import pytest
import torch

from support.gang_memory import allocated

DEVICES: Final = [pytest.param("cpu"), pytest.param("cuda", marks=pytest.mark.gpu)]
"""For a parameter or a fixture."""


def require_gpus(device: str, count: int) -> None:
    """Skip a test on GPUs where there are fewer than it needs: NCCL takes one member for each."""
    if device == "cuda" and torch.cuda.device_count() < count:
        pytest.skip(f"{count} GPUs are needed, and {torch.cuda.device_count()} are here")


def peak_bytes(device: str, work: Callable[[], Any]) -> int:
    """Return the most bytes that work allocates at once, beside what is there already."""
    if device == "cpu":
        return allocated(work)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    work()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def relative_error(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Return the norm of a difference over the norm of what is expected; NaN is no small error."""
    difference = (found.double() - expected.double()).norm() / expected.double().norm()
    return float(difference.nan_to_num(float("inf")))
