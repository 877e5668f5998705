"""Settings with which the members of a gang need the least memory each.

Importing this module must not import torch.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from digen_core.config.run import RunConfig
from digen_core.errors import ConfigError
from digen_core.gang.degrees import check_degree
from digen_core.models.image_size import read_settings

GANGS: Final = (2, 4, 8)
"""Sizes of gangs that a host has GPUs for."""


def in_gang(config: RunConfig, folder: Path, size: int) -> RunConfig:
    """Return a config whose weights are sharded over a gang, and tokens dealt if they can be.

    Args:
        config: of the run.
        folder: with the model's settings, as in ``memory_of``.
        size: of the gang.

    Raises:
        OSError: the settings are not there.
    """
    whole = {"stages": 1, "stage_blocks": (), "stages_by_size": ()}
    sharded = {"shard_weights": True, "context_parallel": 1, **whole}
    both = _with(config, sharded | {"context_parallel": size})
    try:
        check_degree(both, size, read_settings(folder))
    except ConfigError:
        return _with(config, sharded)
    return both


def _with(config: RunConfig, values: Mapping[str, object]) -> RunConfig:
    parallel = config.parallel.model_copy(update=values)
    return config.model_copy(update={"parallel": parallel})
