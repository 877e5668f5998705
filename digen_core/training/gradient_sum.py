"""Gradients of packs and their sums, which stay on the device until they are reduced."""

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
from digen_core.transport.arrays import Arrays, to_arrays, to_tensors

_LOSS_SCALES: Final = tuple(2.0**power for power in (24, 20, 16, 12, 8, 4, 0))

Gradient = dict[str, Tensor]  # parameter name -> gradient, on any device


@dataclass(frozen=True, slots=True)
class PackGradient:
    """The gradient of one pack. A parameter without gradient has no entry."""

    gradient: Gradient
    metrics: PackMetrics


class GradientSum:
    """The sum over some packs of an update, in float32 or better, where the packs were computed.

    Only when it leaves the process, for another worker to reduce, is it copied to the host. Packs
    are added in place, each once: one that is added again, as its task was run again, is left out.
    """

    def __init__(self) -> None:
        self.gradient: Gradient = {}
        self.metrics = PackMetrics()
        self.packs: frozenset[int] = frozenset()  # indices of those that are in

    def __reduce__(self) -> tuple[object, ...]:
        return _received, (to_arrays(self.gradient), self.metrics, self.packs)

    @property
    def num_bytes(self) -> int:
        """Of the sum where it is."""
        return sum(value.nbytes for value in self.gradient.values())

    def add(self, index: int, parts: Sequence[PackGradient]) -> None:
        """Add a pack, whose samples of each size are a part.

        Raises:
            torch.OutOfMemoryError: the sum does not fit beside it; nothing has changed.
        """
        if index in self.packs:
            return
        self._accumulate([part.gradient for part in parts])
        for part in parts:
            self.metrics = add_metrics(self.metrics, part.metrics)
        self.packs |= {index}

    def _accumulate(self, gradients: Sequence[Gradient]) -> None:
        own = self.gradient
        own |= {
            name: _zeros(value)
            for gradient in gradients
            for name, value in gradient.items()
            if name not in own
        }
        for gradient in gradients:
            for name, value in gradient.items():
                own[name].add_(value)


def reduced(sums: Sequence[GradientSum]) -> GradientSum:
    """Return the sum of sums over disjoint packs, on the host if they are several.

    They stay as they are: a reduction is repeated if a device is lost meanwhile.

    Raises:
        ValueError: two of them hold the same pack.
    """
    if len(sums) == 1:
        return sums[0]
    total = GradientSum()
    for part in sums:
        if total.packs & part.packs:
            raise ValueError(f"packs {sorted(total.packs & part.packs)} are in two sums.")
        total._accumulate([{name: value.cpu() for name, value in part.gradient.items()}])
        total.metrics = add_metrics(total.metrics, part.metrics)
        total.packs |= part.packs
    return total


def _zeros(value: Tensor) -> Tensor:
    """Return what gradients like this are added to: of its own, as autograd may share one."""
    wide = torch.promote_types(value.dtype, torch.float32)
    return torch.zeros(value.shape, dtype=wide, device=value.device)


def _received(gradient: Arrays, metrics: PackMetrics, packs: frozenset[int]) -> GradientSum:
    """Return a sum that came from another worker, on the host."""
    total = GradientSum()
    total.gradient = to_tensors(gradient, torch.device("cpu"))
    total.metrics, total.packs = metrics, packs
    return total


def pack_gradient(policy: Policy, pairs: Pairs | CleanPairs, config: RunConfig) -> PackGradient:
    """Return the gradient of one pack, in the parameters' dtype; arguments as in ``pack_loss``."""
    loss, metrics = pack_loss(policy, pairs, config)
    parameters = trainable_parameters(policy)
    gradients = _gradients(loss, list(parameters.values()), config.model.dtype)
    found = {
        name: gradient
        for name, gradient in zip(parameters, gradients, strict=True)
        if gradient is not None
    }
    return PackGradient(found, metrics)


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
