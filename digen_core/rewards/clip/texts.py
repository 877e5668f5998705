"""Texts that images are compared with, where they are not the prompts but stand in their rows."""

from collections.abc import Mapping
from typing import Any

from digen_core.inputs.reading import shown


def text_at(row: Mapping[str, Any], place: str) -> str | None:
    """Return a text of a prompt's row, or None if there is none.

    Args:
        row: metadata.
        place: column; dots lead into objects: "auxiliary_info.style".

    Raises:
        ValueError: something else is there.
    """
    found: Any = row
    for name in place.split("."):
        found = found.get(name) if isinstance(found, Mapping) else None
    if found is not None and (not isinstance(found, str) or not found.strip()):
        raise ValueError(f"its {place!r} is {shown(found, 80)}; it must be a text")
    return found
