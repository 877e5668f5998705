"""The page on reliability says what the code does."""

import ast
import re

import pytest

from deployments.chaos.player import MOST_ATTEMPTS
from deployments.chaos.story import KINDS, LONGEST_DELAY
from support.paths import ROOT

PAGE = (ROOT / "docs/reliability.md").read_text(encoding="utf-8")


def test_kinds_of_faults():
    rows = [f"| `{kind}` | {what} |" for kind, what in KINDS.items()]
    assert "| kind | what happens |\n|---|---|\n" + "\n".join(rows) + "\n\n" in PAGE


def test_figures():
    assert MOST_ATTEMPTS == 5
    assert f"up to {LONGEST_DELAY} seconds" in PAGE.replace("\n", " ")


PROMISES = re.findall(r"^\| (.+) \| `(tests/.+\.py)`: `(test_\w+)` \|$", PAGE, re.MULTILINE)
KEPT_THERE = ("losses", "resume", "prefect_outage", "tracking_outage", "standstill", "stopping")
"""Files of tests that are about nothing else: each of their tests shows a promise."""


def names_in(path: str) -> set[str]:
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_each_promise_has_its_test():
    assert len(PROMISES) == PAGE.split("## Trying it")[0].count("\n| ") - 1, "a row is not one"
    for promise, path, test in PROMISES:
        assert test in names_in(path), promise


@pytest.mark.parametrize("name", KEPT_THERE)
def test_nothing_that_is_shown_goes_unsaid(name):
    path = f"tests/integration/test_{name}.py"
    shown = {test for test in names_in(path) if test.startswith("test_")}
    assert shown == {test for _, where, test in PROMISES if where == path}
