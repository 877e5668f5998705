"""The kernel of a transformer's attention, by diffusers' dispatcher."""

from typing import Any, Final

import diffusers
import torch
from diffusers.models.attention_dispatch import AttentionBackendName, attention_backend
from torch import Tensor, nn

from digen_core.config.model import Attention, ModelConfig
from digen_core.errors import ConfigError
from digen_core.models.policy import Policy

_BACKENDS: Final[dict[Attention, AttentionBackendName]] = {
    "native": AttentionBackendName.NATIVE,
    "native_flash": AttentionBackendName._NATIVE_FLASH,
    "cudnn": AttentionBackendName._NATIVE_CUDNN,
    "efficient": AttentionBackendName._NATIVE_EFFICIENT,
    "math": AttentionBackendName._NATIVE_MATH,
    "flash": AttentionBackendName.FLASH,
}

_CUDA: Final = ("cudnn", "efficient", "flash")
_HALF: Final = ("bfloat16", "float16")
_DTYPES: Final[dict[Attention, tuple[str, ...]]] = {
    **dict.fromkeys(("cudnn", "flash", "native_flash"), _HALF),
    "efficient": (*_HALF, "float32"),
}
"""What kernels take on CUDA that do not take all."""


def set_attention(policy: Policy, config: ModelConfig) -> None:
    """Have all attention of a policy's transformer computed by the config's kernel.

    Other models of the process keep theirs, but that torch's own choice is never cuDNN's from now
    on, for any of them: its gradients may be wrong (`make_gradients_dense`).

    Raises:
        ConfigError: this machine has no such kernel.
    """
    if config.attention in _CUDA and policy.device.type != "cuda":
        raise ConfigError(
            f"model.attention is {config.attention!r}, which needs a CUDA device, but model.device "
            f"is {policy.device.type!r} here; use native"
        )
    dtypes = _DTYPES.get(config.attention, (config.dtype,))
    if policy.device.type == "cuda" and config.dtype not in dtypes:
        raise ConfigError(
            f"model.attention is {config.attention!r}, which takes {' or '.join(dtypes)} on CUDA, "
            f"but model.dtype is {config.dtype!r}; use bfloat16, or native"
        )
    torch.backends.cuda.enable_cudnn_sdp(enabled=False)  # its own backend below enables it again
    if config.attention == "cudnn":
        make_gradients_dense(policy.transformer)
    diffusers.utils.logging.set_verbosity_error()  # it would warn that its choice is experimental
    try:
        with attention_backend():  # restores what the setter changes: the default
            for transformer in policy.transformers:
                transformer.set_attention_backend(_BACKENDS[config.attention].value)
    except RuntimeError as error:  # a package that is not installed
        raise ConfigError(
            f"model.attention is {config.attention!r}, but here: {' '.join(str(error).split())} "
            "Every worker needs it; or use native"
        ) from error


def require_dealing(device: torch.device, config: ModelConfig) -> None:
    """Check that a device has a config's kernel of attention for tokens that members deal.

    diffusers then calls torch's flash attention itself, which CPUs have under another name.

    Raises:
        ConfigError: it has not.
    """
    if config.attention == "native_flash" and device.type == "cpu":
        raise ConfigError(
            "model.attention is 'native_flash', with which parallel.context_parallel needs a CUDA "
            "device, but model.device is 'cpu' here; use native"
        )


def make_gradients_dense(transformer: nn.Module) -> None:
    """Have attention get gradients without gaps between rows; to be called once.

    torch keeps a plan of cuDNN's backward pass by the layout of queries, keys and values, not by
    that of the gradient (pytorch#191576). Of FLUX's blocks with one stream that is a slice of a
    wider one: blocks with two streams then got NaN, or read memory that is not theirs.
    """
    for module in transformer.modules():
        if hasattr(module, "set_processor"):
            module.register_forward_hook(_dense)


def _dense(module: nn.Module, arguments: Any, output: Any) -> Any:
    if isinstance(output, tuple):
        return tuple(_dense(module, arguments, each) for each in output)
    if not isinstance(output, Tensor):
        return output
    return _DenseGradient.apply(output)  # type: ignore[no-untyped-call]


class _DenseGradient(torch.autograd.Function):
    """The identity, whose gradient is contiguous."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        """Return the same values, of any shape."""
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        """Return the gradient, contiguous."""
        return gradients[0].contiguous()
