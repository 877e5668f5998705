"""What a gang can share: over how many GPUs a model can deal the tokens of a sample, and weights.

Importing this module must not import torch.
"""

from collections.abc import Iterator
from math import gcd
from typing import Final

from digen_core.config.families import FAMILIES, Settings
from digen_core.config.model import ModelConfig, Size
from digen_core.config.run import RunConfig
from digen_core.errors import ConfigError

_KERNELS: Final = ("native", "cudnn", "native_flash", "flash")
"""Kernels of attention that diffusers deals tokens with."""

_MOST: Final = 64  # members of a gang


def check_shards(config: RunConfig) -> None:
    """Check that the weights of a config's model can be sharded, if they are to be.

    Raises:
        ConfigError: they cannot.
    """
    if config.parallel.shard_weights and "transformer" in config.model.offload:
        raise ConfigError(
            "parallel.shard_weights is true, but model.offload names the transformer, whose shards "
            "stay on their devices; leave it out"
        )


def check_degree(config: RunConfig, size: int, settings: tuple[Settings, Settings] | None) -> None:
    """Check that the members of a gang can deal the tokens of a config's samples.

    Args:
        config: of the run.
        size: of the gang.
        settings: of VAE and transformer, if they are known.

    Raises:
        ConfigError: they cannot.
    """
    model, degree = config.model, config.parallel.degree_of(size)
    if degree == 1:
        return
    label = f"parallel.context_parallel is {config.parallel.context_parallel}"
    if degree != config.parallel.context_parallel:
        label += f" ({degree} in a gang of {size})"
    if not FAMILIES[model.family].deals_tokens:
        raise ConfigError(f"{label}, but {model.family} deals no tokens; use 1")
    if model.attention not in _KERNELS:
        raise ConfigError(
            f"{label}, but model.attention is {model.attention!r}; use one of {', '.join(_KERNELS)}"
        )
    try:
        numbers = dict(_dealt(model, settings))
    except (ValueError, KeyError, TypeError):  # settings of another format
        return
    for what, number in numbers.items():
        if number % degree:
            common = gcd(*numbers.values())
            fitting = [str(n) for n in range(1, _MOST + 1) if common % n == 0]
            raise ConfigError(
                f"{label}, which does not divide {what}; what does is {', '.join(fitting)}"
            )


def _dealt(
    model: ModelConfig, settings: tuple[Settings, Settings] | None
) -> Iterator[tuple[str, int]]:
    """Yield what a degree must divide: its name and its number."""
    if FAMILIES[model.family].deals_text:
        length = model.max_sequence_length
        yield f"model.max_sequence_length ({length})", length
    if settings is None:
        return
    vae, transformer = settings
    heads = int(transformer["num_attention_heads"])
    yield f"the {heads} attention heads of model.path {model.path}", heads
    for size in (model.size, *model.sizes):
        number = _num_tokens(model, size, vae, transformer)
        yield f"the {number} tokens of samples of {' x '.join(map(str, size))}", number


def _num_tokens(model: ModelConfig, size: Size, vae: Settings, transformer: Settings) -> int:
    """Return how many tokens a transformer makes of the latent of a sample."""
    height, width, frames = size
    side = FAMILIES[model.family].side(vae, transformer)
    patch = transformer.get("patch_size", 1)  # of all three axes, or of the sides only
    depth = patch[0] if not isinstance(patch, int) else transformer.get("patch_size_t") or 1
    return (height // side) * (width // side) * (((frames - 1) // 4 + 1) // int(depth))
