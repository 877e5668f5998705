"""The page on Prefect names every event that a run emits."""

import ast
import re
from collections.abc import Iterator

from support.paths import ROOT

PAGE = (ROOT / "docs/prefect.md").read_text(encoding="utf-8")
PLACES = {"notify": 1, "_notify_once": 2}
"""Functions that emit an event, and which argument is its name."""


def emitted() -> Iterator[str]:
    for path in (ROOT / "flows").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                place = PLACES.get(node.func.id)
                name = None if place is None else node.args[place]
                if isinstance(name, ast.Constant):
                    yield f"digen.{name.value}"


def test_every_event_is_named():
    told = PAGE[PAGE.index("## What went wrong") : PAGE.index("with the same sentence")]
    assert set(re.findall(r"`(digen\.[a-z-]+)`", told)) == set(emitted())
