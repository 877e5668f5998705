"""Names in tests: what they import, read or replace of our code exists, in seldom cases too."""

import ast
from collections.abc import Iterator
from pathlib import Path
from pkgutil import resolve_name
from types import ModuleType

from support.paths import ROOT

OWN = {"deployments", "digen_core", "flows", "support", "tasks"}


def imports(nodes: list[ast.AST]) -> list[tuple[str, str]]:
    """Return what a file imports from our modules: its name there, and its dotted name."""
    return [
        (alias.asname or alias.name, f"{node.module}.{alias.name}")
        for node in nodes
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in OWN
        for alias in node.names
    ]


def bound(nodes: list[ast.AST]) -> set[str]:
    """Return the names of a file's variables, arguments, functions and classes."""
    variables = {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    arguments = {n.arg for n in nodes if isinstance(n, ast.arg)}
    definitions = {n.name for n in nodes if isinstance(n, ast.FunctionDef | ast.ClassDef)}
    return variables | arguments | definitions


def dotted(node: ast.expr, known: dict[str, str]) -> str | None:
    """Return the dotted name of an attribute of what is imported; None of anything else."""
    if isinstance(node, ast.Name):
        return known.get(node.id)
    owner = dotted(node.value, known) if isinstance(node, ast.Attribute) else None
    return owner and f"{owner}.{node.attr}"


def named(path: Path) -> Iterator[str]:
    """Yield the dotted names of our code that a file imports, reads, and replaces by `setattr`."""
    nodes = list(ast.walk(ast.parse(path.read_text())))
    imported, own = imports(nodes), bound(nodes)
    yield from (origin for _, origin in imported)
    known = {name: origin for name, origin in imported if name not in own}
    for node in nodes:
        match node:
            case ast.Attribute(ctx=ast.Load()) if name := dotted(node, known):
                yield name
            case ast.Call(ast.Attribute(attr="setattr"), [owner, ast.Constant(str(attribute)), _]):
                if name := dotted(owner, known):
                    yield f"{name}.{attribute}"
            case ast.Call(ast.Attribute(attr="setattr"), [ast.Constant(str(name)), _]):
                yield name


def is_gone(name: str) -> bool:
    """Tell whether there is no such module, or no such attribute of a module or a class."""
    try:
        resolve_name(name)
    except AttributeError as error:
        return isinstance(error.obj, ModuleType | type)
    except ImportError:
        return True
    return False


def missing(*files: Path) -> list[str]:
    """Return the names in files that nothing has."""
    return sorted(filter(is_gone, {name for file in files for name in named(file)}))


def test_what_tests_name_exists():
    assert not missing(*(ROOT / "tests").rglob("*.py"))


def test_a_name_that_is_gone_is_found(tmp_path):
    (tmp_path / "x.py").write_text(
        "from digen_core import errors\n"
        "from digen_core.records import Span as known\n"
        "def f(patch, known):\n"
        "    from digen_core.errors import Gone, UserError\n"
        "    from digen_core.errors import Lost as Gone\n"
        "    patch.setattr(errors, 'lost', errors.UserError.missing)\n"
        "    patch.setattr(UserError, '__init__', known.whatever)\n"
        "    patch.setattr('digen_core.errors.absent', None)\n"
    )
    assert missing(tmp_path / "x.py") == [
        f"digen_core.errors.{name}"
        for name in ("Gone", "Lost", "UserError.missing", "absent", "lost")
    ]
