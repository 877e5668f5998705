"""Gradients of packs and their sums."""

from dataclasses import dataclass

import torch

from digen_core.config import RunConfig
from digen_core.models.policy import Policy
from digen_core.models.trainable import trainable_parameters
from digen_core.training.gradient import PackMetrics, add_metrics, pack_loss
from digen_core.training.pairs import CleanPairs, Pairs
from digen_core.transport.arrays import Weights, to_arrays


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


def pack_gradient(
    policy: Policy, pairs: Pairs | CleanPairs, config: RunConfig, *, sigma_max: float
) -> GradientSum:
    """Return the gradient of one pack; arguments as in ``pack_loss``."""
    loss, metrics = pack_loss(policy, pairs, config, sigma_max=sigma_max)
    parameters = trainable_parameters(policy)
    # Some parameters of a last block reach no output: they have no gradient, and that is right.
    gradients = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True)
    found = {
        name: gradient
        for name, gradient in zip(parameters, gradients, strict=True)
        if gradient is not None
    }
    return GradientSum(to_arrays(found), metrics)
