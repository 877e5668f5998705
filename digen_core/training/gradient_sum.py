"""Gradients of packs and their sums."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor, nn

from digen_core.config.run import RunConfig
from digen_core.models.policy import Policy
from digen_core.models.trainable import trainable_parameters
from digen_core.training.gradient import PackMetrics, add_metrics, pack_loss
from digen_core.training.pairs import CleanPairs, Pairs
from digen_core.transport.arrays import Weights, to_arrays

_LOSS_SCALES: Final = tuple(2.0**power for power in (24, 20, 16, 12, 8, 4, 0))


@dataclass(frozen=True, slots=True)
class GradientSum:
    """The sum over some packs of an update. A parameter without gradient has no entry."""

    gradient: Weights
    metrics: PackMetrics


def add(left: GradientSum, right: GradientSum) -> GradientSum:
    """Return the sum of two sums over disjoint packs."""
    gradient = dict(left.gradient)
    for name, value in right.gradient.items():
        gradient[name] = gradient[name] + value if name in gradient else value
    return GradientSum(gradient, add_metrics(left.metrics, right.metrics))


def pack_gradient(policy: Policy, pairs: Pairs | CleanPairs, config: RunConfig) -> GradientSum:
    """Return the gradient of one pack; arguments as in ``pack_loss``."""
    loss, metrics = pack_loss(policy, pairs, config)
    parameters = trainable_parameters(policy)
    gradients = _gradients(loss, list(parameters.values()), config.model.dtype)
    found = {
        name: gradient
        for name, gradient in zip(parameters, gradients, strict=True)
        if gradient is not None
    }
    return GradientSum(to_arrays(found), metrics)


def _gradients(loss: Tensor, parameters: list[nn.Parameter], dtype: str) -> Sequence[Tensor | None]:
    """Return the gradient of each parameter; None if it reaches no output, as in a last block.

    A pair's share of the loss is so small that float16 would round it to 0 on the way back: there
    the loss is scaled up by as much as keeps all gradients finite, and they are scaled back, in
    float32.
    """
    if dtype != "float16":
        return torch.autograd.grad(loss, parameters, allow_unused=True)
    gradients: Sequence[Tensor | None] = []
    for scale in _LOSS_SCALES:
        scaled = torch.autograd.grad(loss * scale, parameters, allow_unused=True, retain_graph=True)
        gradients = [None if value is None else value.float() / scale for value in scaled]
        if all(value is None or bool(value.isfinite().all()) for value in gradients):
            break
    return gradients  # what is not finite even so is refused by the optimizer step
