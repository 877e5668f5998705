"""What a gang can share: over how many GPUs a model can deal a sample's tokens, blocks, weights.

Importing this module must not import torch.
"""

from collections.abc import Collection, Iterator, Sequence
from itertools import accumulate
from math import gcd
from typing import Final

from digen_core.config.families import FAMILIES, Family, Settings
from digen_core.config.model import ModelConfig
from digen_core.config.parallel import ParallelConfig
from digen_core.config.run import RunConfig
from digen_core.config.size import Size
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


def check_stages(config: RunConfig, *sizes: int, transformer: Settings | None = None) -> None:
    """Check that the members of gangs can hold a config's transformer in stages, if they are to.

    Args:
        config: of the run.
        sizes: of its devices; 1: a single worker, which holds all blocks.
        transformer: its settings, if they are known.

    Raises:
        ConfigError: they cannot.
    """
    parallel = config.parallel
    if parallel.stages == 1 and parallel.stage_blocks:
        raise ConfigError("parallel.stages is 1, but parallel.stage_blocks is set; leave it out")
    if not parallel.has_stages:
        return
    for is_set, what in (
        (parallel.context_parallel > 1, "parallel.context_parallel: stages deal no tokens"),
        (parallel.shard_weights, "parallel.shard_weights: a stage is held whole"),
        (bool(config.model.adapters), "model.adapters: fold them into the model before"),
    ):
        if is_set:
            raise ConfigError(f"{_asked(parallel)}, which goes not with {what}; leave it out")
    _check_sizes(parallel, sizes)
    number = _num_blocks(config, transformer)
    for key, stages, dealt in _cut(parallel):
        _check_blocks(key, dealt, stages, number, config.model.path)


def _asked(parallel: ParallelConfig) -> str:
    """Return what a config says of stages."""
    if parallel.stages_by_size:
        return f"parallel.stages_by_size is {[list(own) for own in parallel.stages_by_size]}"
    return f"parallel.stages is {parallel.stages}"


def _cut(parallel: ParallelConfig) -> Iterator[tuple[str, int, Sequence[int]]]:
    """Yield each way in which blocks are dealt over stages: the key, how many, blocks of each."""
    if parallel.stages > 1:
        yield "parallel.stage_blocks", parallel.stages, parallel.stage_blocks
    for own in parallel.stages_by_size:
        yield "parallel.stages_by_size", len(own), own


def _check_sizes(parallel: ParallelConfig, sizes: Collection[int]) -> None:
    """Check that stages divide gangs, and that it is clear in how many each gang is."""
    lengths = [len(own) for own in parallel.stages_by_size]
    if len(set(lengths)) < len(lengths):
        most = max(lengths, key=lengths.count)
        raise ConfigError(f"{_asked(parallel)}, two of which are of {most} stages; leave one out")
    for size in {*sizes} - {1, *lengths}:
        if size % parallel.stages:
            raise ConfigError(
                f"parallel.stages is {parallel.stages}, which does not divide a gang of {size}; "
                f"what does is {', '.join(str(n) for n in range(1, size + 1) if size % n == 0)}"
            )


def check_gangs_of(config: RunConfig, sizes: Collection[int]) -> None:
    """Check that the devices of a run can hold its transformer in stages or shards, if they are to.

    Args:
        config: of the run.
        sizes: of all its devices.

    Raises:
        ConfigError: they cannot, or none is a gang.
    """
    check_stages(config, *sizes)
    parallel = config.parallel
    if max(sizes) == 1 and (parallel.has_stages or parallel.shard_weights):
        asked = _asked(parallel) if parallel.has_stages else "parallel.shard_weights is true"
        raise ConfigError(
            f"{asked}, but no device of the run is a gang; set cluster.trainer_gang and "
            "cluster.rollout_gang, or start workers with --members"
        )


def check_cuts(config: RunConfig, transformer: Settings | None = None) -> None:
    """Check that coded cuts are between blocks of a config's model, and where its stages meet.

    Args:
        config: of the run.
        transformer: its settings, if they are known.

    Raises:
        ConfigError: they are not.
    """
    blocks, parallel = [cut.block for cut in config.model.cuts], config.parallel
    if not blocks:
        return
    label = f"model.cuts codes what comes to blocks {blocks}"
    number = _num_blocks(config, transformer)
    if number is not None and blocks[-1] >= number:
        raise ConfigError(
            f"{label}, but model.path {config.model.path} has {number} blocks, 0 to {number - 1}"
        )
    if parallel.context_parallel > 1:
        raise ConfigError(
            f"{label}, which goes not with parallel.context_parallel "
            f"({parallel.context_parallel}); leave one of them out"
        )
    for key, stages, dealt in _cut(parallel):
        ends = list(accumulate(dealt))[:-1]
        if not set(blocks) <= set(ends):
            where = f"meet at {ends}" if ends else "meet where they weigh equally"
            raise ConfigError(
                f"{label}, but the {stages} stages {where}; set {key} so that stages begin with "
                "those blocks"
            )


def _num_blocks(config: RunConfig, transformer: Settings | None) -> int | None:
    """Return the blocks of a model, if its settings are known and of the usual format."""
    try:
        family = FAMILIES[config.model.family]
        return None if transformer is None else family.num_blocks(transformer)
    except (ValueError, KeyError, TypeError):
        return None


def _check_blocks(
    key: str, dealt: Sequence[int], stages: int, number: int | None, path: str | None
) -> None:
    """Check that each stage has blocks, and all together those that there are, if that is known."""
    label = f"{key} is {list(dealt)}"
    if dealt and (len(dealt) != stages or min(dealt) < 1):
        raise ConfigError(f"{label}; it needs a number of blocks, 1 at least, for each stage")
    if number is None:
        return
    if stages > number:
        raise ConfigError(
            f"parallel.stages is {stages}, more than the {number} blocks of model.path {path}; use "
            "fewer"
        )
    if dealt and sum(dealt) != number:
        raise ConfigError(
            f"{key} {list(dealt)} are {sum(dealt)} blocks together, but model.path {path} has "
            f"{number}"
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
    family = FAMILIES[model.family]
    if not family.deals_tokens:
        raise ConfigError(f"{label}, but {model.family} deals no tokens; use 1")
    kernels = _kernels_of(family)
    if model.attention not in kernels:
        one_of = "one of " * (len(kernels) > 1)
        raise ConfigError(
            f"{label}, but model.attention is {model.attention!r}; use {one_of}{', '.join(kernels)}"
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


def _kernels_of(family: Family) -> list[str]:
    """Return the kernels of attention with which diffusers deals tokens of a family's samples.

    Where texts are masked that is not cuDNN's: dealt, it would add the mask to the products, as a
    number, and mask nothing (diffusers#14342).
    """
    found = [kernel for kernel in _KERNELS if kernel in family.attention]
    return [own for own in found if own != "cudnn" or not family.masks_text]


def _dealt(
    model: ModelConfig, settings: tuple[Settings, Settings] | None
) -> Iterator[tuple[str, int]]:
    """Yield what a degree must divide: its name and its number."""
    family = FAMILIES[model.family]
    if family.padded_to:
        yield f"the {family.padded_to} tokens that {model.family} pads to", family.padded_to
    elif family.deals_text and not family.deals_any_number:
        length = model.max_sequence_length
        yield f"model.max_sequence_length ({length})", length
    if settings is None:
        return
    vae, transformer = settings
    heads = int(transformer[family.heads])
    yield f"the {heads} attention heads of model.path {model.path}", heads
    if family.padded_to or family.deals_any_number:
        return
    for size in (model.size, *model.sizes):
        number = _num_tokens(model, size, vae, transformer)
        yield f"the {number} tokens of samples of {' x '.join(map(str, size))}", number


def _num_tokens(model: ModelConfig, size: Size, vae: Settings, transformer: Settings) -> int:
    """Return how many tokens a transformer makes of the latent of a sample."""
    height, width, frames = size
    family = FAMILIES[model.family]
    side, temporal = family.side(vae, transformer), family.frames(vae)
    patch = transformer.get("patch_size", 1)  # of all three axes, or of the sides only
    depth = patch[0] if not isinstance(patch, int) else transformer.get("patch_size_t") or 1
    rows, columns = (own // side for own in (height, width))
    return rows * columns * (((frames - 1) // temporal + 1) // int(depth))
