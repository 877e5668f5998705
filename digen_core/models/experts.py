"""Two experts as one transformer: each computes the noise levels on its side of a boundary.

To all that holds, trains, shards and pushes weights they are one module, with peft's adapter
methods; the names of weights begin with that of the expert. Which one computes is chosen for each
batch, so a batch of both sides is computed in two parts.
"""

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed.tensor import DTensor

from digen_core.config.model import ModelConfig, TrainedExperts
from digen_core.errors import ConfigError
from digen_core.models.expert_names import PARTS, check_experts, lone_expert


class Experts(nn.Module):
    """A transformer for high noise and one for low noise, which are alike but for their weights."""

    def __init__(self, high: Any, low: Any, *, boundary: float, trained: TrainedExperts) -> None:
        """Keep both.

        Args:
            high: transformer for noise levels of the boundary and above.
            low: transformer for those below.
            boundary: noise level.
            trained: which of them are to be trained.
        """
        super().__init__()
        self.transformer, self.transformer_2 = high, low
        # As noise levels are: torch compares with it so, and Python would not.
        self.boundary = float(np.float32(boundary))
        self._trains = trained
        self.is_high = trained != "low"  # whose turn it is: where there are no numbers, its own

    @property
    def config(self) -> Any:
        """The settings of either."""
        return self.transformer.config

    @property
    def both(self) -> list[Any]:
        """The experts."""
        return [self.transformer, self.transformer_2]

    @property
    def trained(self) -> dict[str, Any]:
        """Those that are trained, by their names."""
        return {
            part: getattr(self, part)
            for side, part in PARTS.items()
            if self._trains in ("both", side)
        }

    @property
    def current(self) -> Any:
        """The one whose turn it is."""
        return self.transformer if self.is_high else self.transformer_2

    def forward(self, *arguments: Any, **settings: Any) -> Any:
        """Return what the expert returns whose turn it is."""
        return self.current(*arguments, **settings)

    @contextmanager
    def turn_of(self, *, is_high: bool) -> Iterator[None]:
        """Have one of them compute while the body runs."""
        before, self.is_high = self.is_high, is_high
        try:
            yield
        finally:
            self.is_high = before

    def sides(self, sigma: Tensor) -> list[tuple[bool, Tensor | None]]:
        """Return who computes which rows of a batch: whether it is for high noise; None: all rows.

        Without numbers, as where sizes are counted, it is one that is trained: both are alike.

        Args:
            sigma: [B] noise levels.
        """
        if sigma.is_meta or isinstance(sigma, FakeTensor):
            return [(self.is_high, None)]
        is_high = sigma >= self.boundary
        count = int(is_high.sum())
        if count in (0, len(sigma)):
            return [(count > 0, None)]
        return [(side, (is_high == side).nonzero()[:, 0]) for side in (True, False)]

    def idle(self, sides: Sequence[tuple[bool, Tensor | None]]) -> list[nn.Parameter]:
        """Return the weights that are trained and that none of a batch's rows reach."""
        busy = [self.transformer if is_high else self.transformer_2 for is_high, _ in sides]
        return [
            parameter
            for expert in self.trained.values()
            if expert not in busy
            for parameter in expert.parameters()
            if parameter.requires_grad
        ]

    def changed(self, change: Callable[[Any], Any]) -> Self:
        """Return like ones of what ``change`` makes of each."""
        high, low = map(change, self.both)
        return type(self)(high, low, boundary=self.boundary, trained=self._trains)

    def reference(self) -> Self:
        """Return them as they are before any training: an expert that is not trained is shared."""
        trained = [*self.trained.values()]
        return self.changed(lambda own: copy.deepcopy(own) if own in trained else own)

    def requires_grad_(self, requires_grad: bool = True) -> Self:
        """Open those that are trained for training, or close both."""
        for expert in self.both:
            expert.requires_grad_(requires_grad and expert in self.trained.values())
        return self

    def enable_gradient_checkpointing(self) -> None:
        """Have those that are trained compute blocks again for their gradients."""
        for expert in self.trained.values():
            expert.enable_gradient_checkpointing()

    @property
    def peft_config(self) -> Any:
        """The adapters of either that is trained, by name."""
        return getattr(next(iter(self.trained.values())), "peft_config", None)

    def add_adapter(self, adapter: Any, name: str) -> None:
        """Attach an adapter to each that is trained, and make it the active one."""
        for expert in self.trained.values():
            expert.add_adapter(adapter, name)

    def active_adapters(self) -> list[str]:
        """Return the active adapters of either that is trained."""
        found: list[str] = next(iter(self.trained.values())).active_adapters()
        return found


def transformer_of(pipeline: Any, config: ModelConfig) -> Any:
    """Return the transformer of a pipeline, or both its experts as one.

    Raises:
        ConfigError: it has an expert without the other one, or the config asks for two experts of
            a model that has one transformer.
    """
    boundary = pipeline.config.get("boundary_ratio")
    check_experts(config, has_two=boundary is not None)
    if boundary is None:
        return pipeline.transformer
    high, low = (getattr(pipeline, part, None) for part in PARTS.values())
    if high is None or low is None:
        raise ConfigError(lone_expert(config.path))
    return Experts(high, low, boundary=boundary, trained=config.train_experts)


def transformers_in(transformer: Any) -> list[Any]:
    """Return the transformers of diffusers that a policy's is made of: itself, or two experts."""
    return transformer.both if isinstance(transformer, Experts) else [transformer]


def reference_of(transformer: Any) -> Any:
    """Return a transformer as it is before any training."""
    is_two = isinstance(transformer, Experts)
    return transformer.reference() if is_two else copy.deepcopy(transformer)


def changed(transformer: Any, change: Callable[[Any], Any]) -> Any:
    """Return what ``change`` makes of a transformer of diffusers, or of each of two experts."""
    is_two = isinstance(transformer, Experts)
    return transformer.changed(change) if is_two else change(transformer)


def in_order(parts: Sequence[Tensor], rows: Sequence[Tensor | None]) -> Tensor:
    """Return a batch [B, ...] of parts of it, which are those rows."""
    places = [own for own in rows if own is not None]
    if not places:
        return parts[0]
    return torch.cat(list(parts))[torch.cat(places).argsort()]


def reaching(velocity: Tensor, idle: Sequence[nn.Parameter]) -> Tensor:
    """Return velocities that have a gradient of 0 for some weights, in place of none.

    So the optimizer steps an expert in every update, whichever noise levels that trained.
    """
    if not (idle and torch.is_grad_enabled()):
        return velocity
    apply: Callable[..., Tensor] = _Reaching.apply
    return apply(velocity, *idle)


class _Reaching(torch.autograd.Function):
    """The identity of its first argument; the others get zeros, which take no memory."""

    @staticmethod
    def forward(ctx: Any, velocity: Tensor, *idle: nn.Parameter) -> Tensor:
        """Return the velocities."""
        ctx.idle = idle
        return velocity.view_as(velocity)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, ...]:
        """Return the velocities' gradient, and zeros."""
        return gradients[0], *map(_zeros_like, ctx.idle)


def _zeros_like(parameter: nn.Parameter) -> Tensor:
    if isinstance(parameter, DTensor):
        return torch.zeros_like(parameter)
    return torch.zeros((), dtype=parameter.dtype, device=parameter.device).expand(parameter.shape)
