"""Linear layers in float8, for rollouts alone: weights and activations have 8 bits (E4M3).

Of weights each row has its scale, of activations each token its own, so what a sample becomes does
not depend on its batch. Only the product is of 8 bits: adapters, biases, norms, attention and what
modulates a block compute in the model's dtype. Parameters stay as they are: what is trained,
hashed, pushed and exported does not know of it.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn import functional
from torch.nn.functional import ScalingType

from digen_core.config.families import FAMILIES
from digen_core.config.run import RunConfig
from digen_core.errors import ConfigError
from digen_core.models.experts import transformers_in
from digen_core.models.lora_targets import learning
from digen_core.models.policy import Policy

FLOAT8: Final = torch.float8_e4m3fn
LARGEST: Final = torch.finfo(FLOAT8).max
"""448: 3 bits of mantissa, so a number is off by 1/16 of itself at most."""

LEAST_CAPABILITY: Final = (8, 9)
"""Of CUDA devices whose tensor cores take float8: Ada and Hopper."""

_MODULATION: Final = re.compile("norm|mod")
"""In the names of a block's layers that see a row per sample, not per token: nothing is gained."""

_MULTIPLE: Final = 16
"""Of which CUDA's kernels want both sides of a weight to be multiples."""


class Float8Linear(nn.Linear):
    """A linear layer that computes in float8 where it is told to; else as any other."""

    is_low: bool
    rows: Tensor | None  # [outputs, inputs] in float8; None: not made yet, or made at each pass
    scales: Tensor | None  # [outputs, 1], float32

    @classmethod
    def of(cls, linear: nn.Linear) -> "Float8Linear":
        """Let a layer become one: it stays the object, with the parameters, that others know."""
        linear.__class__ = cls
        assert isinstance(linear, cls)
        linear.is_low, linear._made_of = False, None
        linear.register_buffer("rows", None, persistent=False)
        linear.register_buffer("scales", None, persistent=False)
        return linear

    _made_of: int | None  # count of changes of the weight, when rows were made

    @property
    def low_bytes(self) -> int:
        """The bytes that this layer takes beside its weight once it has computed in float8."""
        if isinstance(self.weight, DTensor):
            return 0
        return self.weight.numel() * FLOAT8.itemsize + self.out_features * torch.float32.itemsize

    def refresh(self) -> None:
        """Round the weight as it is now, unless that was done; to be called without gradients.

        A weight of which this device holds some rows only is rounded in each pass, when it is
        gathered.
        """
        weight = self.weight
        if not isinstance(weight, DTensor) and self._made_of != weight._version:
            rows, scales = in_float8(weight)
            if self.rows is None or self.scales is None:
                self.rows, self.scales = rows, scales
            else:  # CUDA graphs read them where they lie
                self.rows.copy_(rows)
                self.scales.copy_(scales)
            self._made_of = weight._version

    def forward(self, x: Tensor) -> Tensor:
        """Return [..., outputs] of [..., inputs], in their dtype."""
        if not (self.is_low and x.numel()):  # a text may have no token
            return super().forward(x)
        rows, scales = self.rows, self.scales
        if rows is None or scales is None:
            rows, scales = in_float8(self.weight)
        found: Tensor = _product(x.flatten(0, -2), rows, scales).unflatten(0, x.shape[:-1])
        return found if self.bias is None else found + self.bias


def in_float8(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return rows [n, k] in float8, and scales [n, 1] in float32: their product is nearly ``x``.

    A row that is 0 stays 0. One with NaN or Inf has a scale that is: so has what is made of it.
    """
    low, high = torch.aminmax(x, dim=-1, keepdim=True)
    largest = torch.maximum(high, -low).float()
    scale = (largest / LARGEST).clamp_min(torch.finfo(torch.float32).tiny)
    return (x / scale).to(FLOAT8), scale  # divided in float32, or better


def _product(x: Tensor, rows: Tensor, scales: Tensor) -> Tensor:
    """Return x [n, k] times the transposed rows [m, k], in the dtype of x.

    In float64 products of float8 numbers add up without rounding, in whichever order: so samples of
    a float64 model are the same in any batch.
    """
    own, own_scales = in_float8(x)
    if x.dtype == torch.float64:
        return own.double() @ rows.double().t() * own_scales * scales.t()
    is_wide = x.dtype == torch.float32 and x.device.type == "cpu"  # CUDA's kernels give bfloat16
    return functional.scaled_mm(
        own.contiguous(),  # whichever way the activations lie
        rows.t(),
        own_scales,
        ScalingType.RowWise,
        scales.t(),
        ScalingType.RowWise,
        output_dtype=torch.float32 if is_wide else torch.bfloat16,
    ).to(x.dtype)


def float8_linears(policy: Policy, config: RunConfig) -> tuple[Float8Linear, ...]:
    """Let the linear layers of a policy's blocks become ones that can compute in float8.

    Args:
        policy: freshly loaded.
        config: of the run; if all that it generates has the model's precision there are none.

    Raises:
        ConfigError: the blocks have no such layer.
    """
    if not config.rollout.uses_float8:
        return ()
    lists = FAMILIES[config.model.family].blocks
    found = [
        Float8Linear.of(layer)
        for transformer in transformers_in(policy.transformer)
        for layer in _layers_of(transformer, lists, policy)
    ]
    if not found:
        raise ConfigError(
            f"{config.rollout.key_of_float8} is 'float8', but the transformer's blocks have "
            f"no linear layer whose sides are multiples of {_MULTIPLE}; use 'model'"
        )
    return tuple(found)


def _layers_of(transformer: nn.Module, lists: Iterable[str], policy: Policy) -> list[nn.Linear]:
    linears = {
        f"{name}.{own}": layer
        for name in lists
        for own, layer in transformer.get_submodule(name).named_modules()
        if type(layer) is nn.Linear and not _MODULATION.search(own)
    }
    names = learning(linears, policy.idle)
    return [
        layer
        for name, layer in linears.items()
        if name in names
        and layer.weight.dtype == policy.dtype  # a family may keep some in float32
        and layer.in_features % _MULTIPLE == layer.out_features % _MULTIPLE == 0
    ]


def refresh(layers: Sequence[Float8Linear]) -> None:
    """Have layers hold their weights in float8 as they are now."""
    with torch.no_grad():  # once, as rollouts look at hundreds of them before each step
        for layer in layers:
            layer.refresh()


@contextmanager
def computing_in_float8(layers: Sequence[Float8Linear]) -> Iterator[None]:
    """Run the body, which computes no gradients, with layers in float8."""
    refresh(layers)
    _switch(layers, is_low=True)
    try:
        yield
    finally:
        _switch(layers, is_low=False)


def _switch(layers: Sequence[Float8Linear], *, is_low: bool) -> None:
    for layer in layers:
        object.__setattr__(layer, "is_low", is_low)  # a module's own takes ten times as long


def require_float8(device: torch.device, key: str = "rollout.precision") -> None:
    """Check that a device computes in float8. A CPU does, though no faster.

    Args:
        device: that generates.
        key: of the config that asks for it.

    Raises:
        ConfigError: it does not.
    """
    what = f"a {device.type} device"
    if device.type == "cuda":
        found = torch.cuda.get_device_capability(device)
        if found >= LEAST_CAPABILITY:
            return
        what = f"{torch.cuda.get_device_name(device)}, of compute capability {found[0]}.{found[1]}"
    elif device.type in ("cpu", "meta"):
        return
    least = ".".join(map(str, LEAST_CAPABILITY))
    raise ConfigError(
        f"{key} is 'float8', which takes a CUDA device of compute capability {least} "
        f"(Ada, Hopper) or newer, or a CPU, but samples would be generated on {what}; use 'model', "
        "or have such devices train only"
    )
