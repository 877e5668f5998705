"""The page of the architecture, and paths in all pages, beside the code that they tell of."""

import re
import tomllib
from dataclasses import fields
from typing import get_args

import pytest

from digen_core.control.layout import LAYOUTS
from digen_core.control.protocol import Event, Instruction
from digen_core.trace.kinds import SPAN_KINDS
from support.paths import ROOT

ARCHITECTURE = (ROOT / "docs" / "architecture.md").read_text()
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
TOP = "deployments|digen_core|flows|tasks|tests"
FOLDERS = [path for top in TOP.split("|")[:-1] for path in sorted((ROOT / top).rglob("*.py"))]
SOURCE = "\n".join(path.read_text() for path in FOLDERS)
A_FAMILY = "digen_core/models/FAMILY.py"  # one to be written
PATHS = re.compile(rf"`((?:{TOP})/[\w./-]*)`")


def rows(heading: str) -> list[list[str]]:
    """The cells of the first table below a line that begins like this."""
    after = ARCHITECTURE[ARCHITECTURE.index(f"\n{heading}") + 1 :]
    table = after[after.index("| ") :].split("\n\n")[0]
    lines = table.splitlines()[2:]
    return [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in lines]


def names_in(cell: str) -> list[str]:
    return re.findall(r"`([\w.-]+)`", cell)


def test_it_can_be_read_in_one_go():
    assert len(ARCHITECTURE.splitlines()) <= 150


def test_the_kinds_of_spans_are_those_that_are_drawn():
    facts = {kind: (facts.stage, facts.meaning) for kind, facts in SPAN_KINDS.items()}
    assert {names_in(row[0])[0]: (row[1], row[2]) for row in rows("| kind of span")} == facts


def test_the_events_are_those_of_the_protocol_with_their_fields():
    events = {event.__name__: [field.name for field in fields(event)] for event in get_args(Event)}
    shown = [re.fullmatch(r"`(\w+)\((.*)\)`", row[0]) for row in rows("| event")]
    assert {match[1]: match[2].split(", ") for match in shown if match} == events


def test_the_instructions_are_those_of_the_protocol():
    instructions = {instruction.__name__ for instruction in get_args(Instruction)}
    assert {name for row in rows("| event") for name in names_in(row[1])} == instructions


def test_the_layouts_are_those_of_the_controller():
    assert [names_in(row[0])[0] for row in rows("| layout")] == list(LAYOUTS)


def test_the_errors_that_end_a_run_exist():
    for name in {n for row in rows("| what happens") for n in names_in(row[1]) if "Error" in n}:
        assert re.search(rf"class {name}\(", SOURCE), name


def test_the_import_layers_are_those_that_are_checked():
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    layers = next(
        c["layers"] for c in contracts["contracts"] if c.get("containers") == ["digen_core"]
    )
    checked = [set(layer.split(" | ")) for layer in layers]
    shown = [set(re.findall(r"`(\w+)/?`", row[1])) for row in rows("| row")]
    assert shown == checked
    assert len(checked) <= 10


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_paths_of_the_project_exist(page):
    named = set(PATHS.findall(page.read_text())) - {A_FAMILY}
    assert not [path for path in named if not (ROOT / path).exists()]


def test_the_core_is_folders():
    entries = [path for path in (ROOT / "digen_core").iterdir() if path.name != "__pycache__"]
    files = [path for path in entries if path.suffix == ".py"]
    assert len(files) <= 5
    assert all(path.is_dir() or path in files or path.name == "py.typed" for path in entries)


def test_the_flows_are_the_story():
    assert len(list((ROOT / "flows").glob("*.py"))) <= 10


@pytest.mark.parametrize("top", ["deployments", "digen_core", "flows", "tasks"])
def test_no_folder_has_more_than_twenty_modules(top):
    folders = {path.parent for path in (ROOT / top).rglob("*.py")}
    assert not [folder for folder in folders if len(list(folder.glob("*.py"))) > 20]
