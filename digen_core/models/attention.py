"""The kernel of a transformer's attention, by diffusers' dispatcher."""

from typing import Final

import diffusers
from diffusers.models.attention_dispatch import AttentionBackendName, attention_backend

from digen_core.config.model import Attention, ModelConfig
from digen_core.errors import ConfigError
from digen_core.models.policy import TORCH_DTYPES, Policy

_BACKENDS: Final[dict[Attention, AttentionBackendName]] = {
    "native": AttentionBackendName.NATIVE,
    "native_flash": AttentionBackendName._NATIVE_FLASH,
    "cudnn": AttentionBackendName._NATIVE_CUDNN,
    "efficient": AttentionBackendName._NATIVE_EFFICIENT,
    "math": AttentionBackendName._NATIVE_MATH,
    "flash": AttentionBackendName.FLASH,
}

_CUDA: Final = ("cudnn", "flash")
_HALF: Final = ("cudnn", "flash", "native_flash")


def set_attention(policy: Policy, config: ModelConfig) -> None:
    """Have all attention of a policy's transformer computed by the config's kernel.

    Other models of the process keep theirs.

    Raises:
        ConfigError: this machine has no such kernel.
    """
    if config.attention in _CUDA and policy.device.type != "cuda":
        raise ConfigError(
            f"model.attention is {config.attention!r}, which needs a CUDA device, but model.device "
            f"is {policy.device.type!r} here; use native"
        )
    is_half = TORCH_DTYPES[config.dtype].itemsize == 2
    if config.attention in _HALF and policy.device.type == "cuda" and not is_half:
        raise ConfigError(
            f"model.attention is {config.attention!r}, which takes half precision on CUDA, but "
            f"model.dtype is {config.dtype!r}; use bfloat16, or native"
        )
    diffusers.utils.logging.set_verbosity_error()  # it would warn that its choice is experimental
    try:
        with attention_backend():  # restores what the setter changes: the default
            policy.transformer.set_attention_backend(_BACKENDS[config.attention].value)
    except RuntimeError as error:  # a package that is not installed
        raise ConfigError(
            f"model.attention is {config.attention!r}, but here: {' '.join(str(error).split())} "
            "Every worker needs it; or use native"
        ) from error
