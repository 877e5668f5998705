"""Modules of the user's, who changes them between two runs, and may start a run in one."""

import importlib
import sys
from contextvars import ContextVar
from pathlib import Path
from types import ModuleType
from typing import Final

from digen_core.errors import UserError

_name: Final = ContextVar[str]("name", default="")  # of what is being imported
_read: Final = dict[str, int]()  # modules that were -> when their files had been changed


def imported(name: str) -> ModuleType:
    """Return a module, imported anew where its file has changed: a process may outlive a run.

    So do workers of a running cluster, and notebooks. What the module imports is not looked at.

    Raises:
        Exception: whatever it raises when it is imported.
    """
    token = _name.set(name)
    try:
        if name in _read and _read[name] != _changed(sys.modules.get(name)):
            sys.modules.pop(name, None)
        module = importlib.import_module(name)
        _read[name] = _changed(module)
        return module
    finally:
        _name.reset(token)


def _changed(module: ModuleType | None) -> int:
    """Return when a module's file was changed, in ns; 0 if it has none."""
    file = Path(getattr(module, "__file__", None) or "")
    return file.stat().st_mtime_ns if file.is_file() else 0


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
