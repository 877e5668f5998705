"""What to change in a config so that it needs less memory: settings, or the gangs that run it."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from digen_core.config.run import RunConfig
from digen_core.planning.gang_settings import GANGS, in_gang
from digen_core.planning.memory import MemoryIn
from digen_core.planning.memory_count import memory_of

Fits = Callable[[MemoryIn, int | None], bool]
"""Says whether the memory is enough, with the gangs that there are or those of a size."""

Change = tuple[str, str, object]
"""Table, key and value."""

_CHANGES: Final[tuple[Change, ...]] = (
    ("model", "offload", ("text_encoders", "vae")),
    ("train", "gradient_checkpointing", True),
    ("model", "vae_tiling", True),
    ("model", "offload", ("text_encoders", "vae", "transformer")),
    ("model", "dtype", "bfloat16"),
)
"""Those first that change least."""


def remedy(config: RunConfig, folder: Path, fits: Fits) -> str | None:
    """Return what to change for a config to fit: one thing if that is enough; None: nothing is.

    Gangs are what is left where no setting is enough: the smallest, beside the settings.

    Args:
        config: of the run.
        folder: with the model's settings.
        fits: as above.
    """
    return _settings(config, folder, fits) or _gang(config, folder, fits)


def _settings(config: RunConfig, folder: Path, fits: Fits) -> str | None:
    def is_enough(some: Sequence[Change]) -> bool:
        return _fits(_changed(config, some), folder, fits, None)

    changes = _open(config)
    if not changes or not is_enough(changes):
        return None
    fewer = [[change] for change in changes]
    fewer += [changes[:count] for count in range(2, len(changes))]
    enough = next(filter(is_enough, fewer), changes)
    return _shown(enough)


def _gang(config: RunConfig, folder: Path, fits: Fits) -> str | None:
    changes = _open(config)
    for size in GANGS:
        for some in ([], changes):
            changed = in_gang(_changed(config, some), folder, size)
            if _fits(changed, folder, fits, size):
                keys = [("parallel", "shard_weights", True), *_differing(config, changed)]
                return f"{_shown(keys)} in gangs of {size} (the devices' gang)"
    return None


def _differing(config: RunConfig, changed: RunConfig) -> list[Change]:
    """Return what has to be changed in a config to have another one."""
    return [
        (table, key, value)
        for table in ("parallel", "rollout", "model", "train")
        for key, value in getattr(changed, table)
        if value != getattr(getattr(config, table), key)
    ]


def _open(config: RunConfig) -> list[Change]:
    """Return the changes that a config leaves to make.

    None puts back what it has offloaded, and shards stay on their devices.
    """

    def is_open(table: str, key: str, value: object) -> bool:
        now = getattr(getattr(config, table), key)
        if not isinstance(value, tuple):
            return bool(value != now)
        stays = config.parallel.shard_weights and "transformer" in value
        return {*value} > {*now} and not stays

    return [change for change in _CHANGES if is_open(*change)]


def _fits(config: RunConfig, folder: Path, fits: Fits, gang: int | None) -> bool:
    """Say whether a config fits; what is held all the time comes first, whose count is quick."""
    return all(
        fits(partial(memory_of, config, folder, computes=computes), gang)
        for computes in (False, True)
    )


def _changed(config: RunConfig, changes: Sequence[Change]) -> RunConfig:
    for table, key, value in changes:
        changed = getattr(config, table).model_copy(update={key: value})
        config = config.model_copy(update={table: changed})
    return config


def _shown(changes: Sequence[Change]) -> str:
    last = {(table, key): value for table, key, value in changes}  # a later value is more
    values = {
        key: list(value) if isinstance(value, tuple) else value for key, value in last.items()
    }
    return " and ".join(
        f"{table}.{key} = {str(value).lower() if isinstance(value, bool) else repr(value)}"
        for (table, key), value in values.items()
    )
