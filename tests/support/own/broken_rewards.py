"""Rewards that break in the ways in which one's own do."""

from collections.abc import Sequence
from typing import Any

import torch

calls: list[tuple[tuple[int, ...], list[str], list[dict[str, Any]]]] = []


def one_value(images: torch.Tensor, prompts: Sequence[str]) -> torch.Tensor:
    return images.mean(dim=(0, 1, 2, 3)).reshape(1)


def per_pixel(images: torch.Tensor, prompts: Sequence[str]) -> torch.Tensor:
    return images


def no_numbers(images: torch.Tensor, prompts: Sequence[str]) -> list[str]:
    return ["good"] * len(prompts)


def raises(images: torch.Tensor, prompts: Sequence[str]) -> torch.Tensor:
    raise KeyError("caption")


def not_a_number(images: torch.Tensor, prompts: Sequence[str]) -> torch.Tensor:
    return torch.full([len(prompts)], torch.nan)


def wants_a_column(
    images: torch.Tensor, prompts: Sequence[str], metadata: Sequence[dict[str, Any]]
) -> torch.Tensor:
    return torch.tensor([row["target"] for row in metadata], dtype=torch.float64)


def contrast_free(images: torch.Tensor, prompts: Sequence[str]) -> torch.Tensor:
    """Sound, though it divides by what a constant image has none of."""
    return images.mean(dim=(1, 2, 3)) / images.std(dim=(1, 2, 3))


def noted(
    images: torch.Tensor, prompts: Sequence[str], metadata: Sequence[dict[str, Any]]
) -> torch.Tensor:
    calls.append((tuple(images.shape), list(prompts), list(metadata)))
    return torch.ones(len(prompts))


class Loaded:
    """What is loaded once is for the workers to try."""

    def __init__(self, device: torch.device) -> None:
        raise AssertionError("loaded in the process that starts the run")

    def __call__(self, images: torch.Tensor, prompts: Sequence[str]) -> torch.Tensor:
        return torch.ones(len(prompts))


class OneValue:
    def __init__(self, device: torch.device) -> None:
        pass

    def __call__(self, images: torch.Tensor, prompts: Sequence[str]) -> torch.Tensor:
        return torch.ones(1)
