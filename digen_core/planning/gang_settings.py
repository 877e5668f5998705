"""Settings with which the members of a gang need the least memory each.

Importing this module must not import torch.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from digen_core.config.run import RunConfig
from digen_core.errors import ConfigError
from digen_core.gang.degrees import check_cuts, check_degree
from digen_core.models.image_size import read_settings

GANGS: Final = (2, 4, 8)
"""Sizes of gangs that a host has GPUs for."""


def in_gang(config: RunConfig, folder: Path, size: int) -> RunConfig:
    """Return a config whose weights are sharded over a gang, and tokens dealt if they can be.

    What goes not with that is left out: stages, CUDA graphs, and a transformer in host memory.

    Args:
        config: of the run.
        folder: with the model's settings, as in ``memory_of``.
        size: of the gang.

    Raises:
        OSError: the settings are not there.
    """
    whole = {"stages": 1, "stage_blocks": (), "stages_by_size": ()}
    sharded = {"shard_weights": True, "context_parallel": 1, **whole}
    alone = _with(_on_device(config), sharded)
    both = _with(alone, {"context_parallel": size})
    try:
        check_degree(both, size, read_settings(folder))
        check_cuts(both)
    except ConfigError:
        return alone
    return both


def _on_device(config: RunConfig) -> RunConfig:
    """Return a config whose transformer stays where it is, in memory that others may take."""
    model, rollout = config.model, config.rollout
    offload = tuple(part for part in model.offload if part != "transformer")
    tables = {
        "model": model.model_copy(update={"offload": offload}),
        "rollout": rollout.model_copy(update={"cuda_graphs": False}),
    }
    return config.model_copy(update=tables)


def _with(config: RunConfig, values: Mapping[str, object]) -> RunConfig:
    parallel = config.parallel.model_copy(update=values)
    return config.model_copy(update={"parallel": parallel})
