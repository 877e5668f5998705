"""Names of models on a hub."""

import re
from typing import Final

_HUB_ID: Final = re.compile(r"[\w.-]+/[\w.-]+")


def is_hub_id(path: str) -> bool:
    """Say whether a text looks like org/name, and not like a path."""
    return _HUB_ID.fullmatch(path) is not None and not path.startswith(".")
