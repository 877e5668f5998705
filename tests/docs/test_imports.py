"""Imports in tests: also those inside functions name what there is, for slow cases run seldom."""

import ast
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

from support.paths import ROOT

OWN = {"deployments", "digen_core", "flows", "support", "tasks"}


def imported(path: Path) -> Iterator[tuple[str, str]]:
    """Yield the modules of our own that a file imports from, each with a name."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in OWN:
            yield from ((str(node.module), alias.name) for alias in node.names)


def exists(module: str, name: str) -> bool:
    """Tell whether a module has this name, or a package this module."""
    if hasattr(import_module(module), name):
        return True
    try:
        import_module(f"{module}.{name}")
    except ModuleNotFoundError:
        return False
    return True


def missing(*files: Path) -> list[str]:
    """Return the names that files import and that are not there."""
    named = {pair for file in files for pair in imported(file)}
    return sorted(f"{module}.{name}" for module, name in named if not exists(module, name))


def test_what_tests_import_exists():
    assert not missing(*(ROOT / "tests").rglob("*.py"))


def test_a_name_that_is_gone_is_found(tmp_path):
    (tmp_path / "x.py").write_text("def f():\n    from digen_core.errors import Gone, UserError\n")
    assert missing(tmp_path / "x.py") == ["digen_core.errors.Gone"]
