"""What to change in a config so that it needs less memory."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from digen_core.config.run import RunConfig
from digen_core.planning.memory import Memory
from digen_core.planning.memory_count import memory_of

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


def remedy(config: RunConfig, folder: Path, fits: Callable[[Memory], bool]) -> str | None:
    """Return what to change for a config to fit: one thing if that is enough; None: nothing is.

    Args:
        config: of the run.
        folder: with the model's settings.
        fits: says whether there is as much memory as is needed.
    """

    def is_enough(some: Sequence[Change]) -> bool:
        return fits(memory_of(_changed(config, some), folder))

    changes = [change for change in _CHANGES if _changed(config, [change]) != config]
    if not changes or not is_enough(changes):
        return None
    fewer = [[change] for change in changes]
    fewer += [changes[:count] for count in range(2, len(changes))]
    enough = next(filter(is_enough, fewer), changes)
    shown = {(table, key): value for table, key, value in enough}  # a later value is more
    return " and ".join(_shown(table, key, value) for (table, key), value in shown.items())


def _changed(config: RunConfig, changes: Sequence[Change]) -> RunConfig:
    for table, key, value in changes:
        changed = getattr(config, table).model_copy(update={key: value})
        config = config.model_copy(update={table: changed})
    return config


def _shown(table: str, key: str, value: object) -> str:
    shown = list(value) if isinstance(value, tuple) else value
    return f"{table}.{key} = {'true' if shown is True else repr(shown)}"
