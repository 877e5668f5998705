"""Modules of the user's, one of which may be the script that starts a run."""

import importlib
from contextvars import ContextVar
from types import ModuleType
from typing import Final

from digen_core.errors import UserError

_name: Final = ContextVar[str]("name", default="")  # of what is being imported


def imported(name: str) -> ModuleType:
    """Return a module.

    Raises:
        Exception: whatever it raises when it is imported.
    """
    token = _name.set(name)
    try:
        return importlib.import_module(name)
    finally:
        _name.reset(token)


def require_not_imported() -> None:
    """Check that what starts a run is no module that is being imported, as each worker does.

    Raises:
        UserError: it is.
    """
    if name := _name.get():
        raise UserError(
            f"{name} starts a run when it is imported, which every worker does; put what starts it "
            'under: if __name__ == "__main__"'
        )
