"""Pre-flight checks of gangs: whether their members can hold the model together.

Each check raises ConfigError with one line: what is wrong, its value, and what to do.
"""

from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path

from digen_core.config.families import FAMILIES, Settings
from digen_core.config.run import RunConfig
from digen_core.errors import ConfigError
from digen_core.gang.degrees import (
    check_cuts,
    check_degree,
    check_gangs_of,
    check_shards,
    check_stages,
)
from digen_core.gang.runs import runs_of
from digen_core.inputs.weight_files import layers_of
from digen_core.models.image_size import read_settings
from digen_core.models.lora_targets import learning


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


def check_targets_of_stages(config: RunConfig, shapes: dict[str, tuple[int, ...]]) -> None:
    """Check that each stage has a layer that a LoRA is attached to.

    Args:
        config: of the run.
        shapes: of the transformer's weights, by name.

    Raises:
        ConfigError: one has none.
    """
    family, parallel, lora = FAMILIES[config.model.family], config.parallel, config.train.lora
    if lora is None:
        return
    blocks = _blocks_in(shapes, list(family.blocks))
    ends = tuple(f".{target}" for target in lora.targets)
    attached = {
        name for name in learning(layers_of(shapes), family.idle) if f".{name}".endswith(ends)
    }
    if any(not name.startswith(tuple(blocks)) for name in attached):
        return  # what is in no block all stages have
    ways = [*parallel.stages_by_size, *[parallel.stage_blocks] * (parallel.stages > 1)]
    for way in ways:
        stages = len(way) or parallel.stages
        for number, run in enumerate(runs_of(list(blocks.values()), stages, way)):
            own = tuple(list(blocks)[run.start : run.stop])
            if not any(name.startswith(own) for name in attached):
                raise ConfigError(
                    f"train.lora.targets {list(lora.targets)} name no layer of stage {number} of "
                    f"{stages}, blocks {run.start} to {run.stop - 1}; name more layers, or use "
                    "fewer parallel.stages"
                )


def _blocks_in(shapes: Mapping[str, Sequence[int]], lists: Sequence[str]) -> dict[str, int]:
    """Return the numbers in each block by the beginning of their names, in order."""
    found: dict[str, int] = {}
    for name, shape in shapes.items():
        place, _, number = name.partition(".")
        if place in lists:
            key = f"{place}.{number.partition('.')[0]}."
            found[key] = found.get(key, 0) + prod(shape)
    order = {name: place for place, name in enumerate(lists)}
    return dict(
        sorted(found.items(), key=lambda own: (order[own[0].split(".")[0]], _number_in(own[0])))
    )


def _number_in(block: str) -> int:
    return int(block.split(".")[1])


def _settings(config: RunConfig) -> tuple[Settings, Settings] | None:
    """Return the configs of VAE and transformer, if they are here."""
    folder = Path(config.model.source)
    return read_settings(folder) if folder.is_dir() else None
