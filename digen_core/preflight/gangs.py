"""Pre-flight checks of gangs: whether their members can hold the model together.

Each check raises ConfigError with one line: what is wrong, its value, and what to do.
"""

from pathlib import Path

from digen_core.config.families import Settings
from digen_core.config.run import RunConfig
from digen_core.gang.degrees import (
    check_cuts,
    check_degree,
    check_gangs_of,
    check_shards,
    check_stages,
)
from digen_core.models.image_size import read_settings


def check_gangs(config: RunConfig) -> None:
    """Check what the members of a run's gangs share against its model, unloaded.

    What the files of the model do not tell is left to the loading.

    Raises:
        ConfigError: they cannot share it.
    """
    check_shards(config)
    settings = _settings(config)
    transformer = None if settings is None else settings[1]
    gangs = (config.cluster.rollout_gang, config.cluster.trainer_gang)
    here = config.cluster.address is None
    check_stages(config, transformer=transformer)
    check_cuts(config, transformer)
    if here:
        check_gangs_of(config, gangs)
    # of a cluster that is there the sizes of the gangs are not known
    sizes = set(gangs) if here else {config.parallel.context_parallel}
    for size in sorted(sizes):
        check_degree(config, size, settings)


def _settings(config: RunConfig) -> tuple[Settings, Settings] | None:
    """Return the configs of VAE and transformer, if they are here."""
    folder = Path(config.model.source)
    return read_settings(folder) if folder.is_dir() else None
