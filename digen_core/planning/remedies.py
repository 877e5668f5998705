"""What to change in a config so that it needs less memory."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from digen_core.config.run import RunConfig
from digen_core.planning.memory import Memory
from digen_core.planning.memory_count import memory_of

_CHANGES: Final[tuple[tuple[str, str, object], ...]] = (
    ("model", "offload", ("text_encoders", "vae")),
    ("train", "gradient_checkpointing", True),
    ("model", "vae_tiling", True),
    ("model", "offload", ("text_encoders", "vae", "transformer")),
    ("model", "dtype", "bfloat16"),
)
"""Table, key and value, those first that change least."""


def remedy(config: RunConfig, folder: Path, fits: Callable[[Memory], bool]) -> str | None:
    """Return what to change for a config to fit: one thing if that is enough; None: nothing is.

    Args:
        config: of the run.
        folder: with the model's settings.
        fits: says whether there is as much memory as is needed.
    """
    changes = [change for change in _CHANGES if _changed(config, [change]) != config]
    tried = [changes, *([change] for change in changes)]
    tried += [changes[:count] for count in range(2, len(changes))]
    enough = None
    for some in tried:
        if fits(memory_of(_changed(config, some), folder)):
            enough = some
            if some is not changes:
                break
        elif some is changes:
            return None
    return " and ".join(map(_shown, enough or []))


def _changed(config: RunConfig, changes: Sequence[tuple[str, str, object]]) -> RunConfig:
    for table, key, value in changes:
        changed = getattr(config, table).model_copy(update={key: value})
        config = config.model_copy(update={table: changed})
    return config


def _shown(change: tuple[str, str, object]) -> str:
    table, key, value = change
    shown = list(value) if isinstance(value, tuple) else value
    return f"{table}.{key} = {'true' if shown is True else repr(shown)}"
