"""What a process has imported, by a function that another one can call there."""

import importlib
import sys
from collections.abc import Iterable


def imported_with(names: Iterable[str]) -> set[str]:
    """Import modules; return the names of all that are there then."""
    for name in names:
        importlib.import_module(name)
    return set(sys.modules)
