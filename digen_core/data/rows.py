"""Rows of prompt files, and how many of them can be held."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from digen_core.errors import ConfigError
from digen_core.inputs.reading import MIB

MAX_ROWS: Final = 2_000_000
MAX_BYTES: Final = 256 * MIB
"""Most rows and bytes of prompts: they are held in memory, a row taking about a kB."""


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a table."""

    origin: str  # "prompts.jsonl line 3"
    values: Mapping[str, Any]  # by column


def too_large(name: Path | str) -> ConfigError:
    """Return the error that says that there are more prompts than can be held."""
    return ConfigError(
        f"the prompt file {name} holds more than {MAX_ROWS} rows or {MAX_BYTES} bytes of prompts, "
        "which are held in memory; give fewer"
    )
