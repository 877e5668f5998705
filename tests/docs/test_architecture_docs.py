"""The page of the architecture, and paths in all pages, beside the code that they tell of."""

import re
import tomllib

import pytest

from support.paths import ROOT

ARCHITECTURE = (ROOT / "docs" / "architecture.md").read_text()
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
TOP = "deployments|digen_core|flows|tasks|tests"
A_FAMILY = "digen_core/models/FAMILY.py"  # one to be written
PATHS = re.compile(rf"`((?:{TOP})/[\w./-]*)`")


def rows(heading: str) -> list[list[str]]:
    """The cells of the first table below a line that begins like this."""
    table = ARCHITECTURE.split(f"\n{heading}", 1)[1].split("\n| ", 1)[1].split("\n\n")[0]
    lines = table.splitlines()[2:]
    return [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in lines]


def test_the_import_layers_are_those_that_are_checked():
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    layers = next(
        c["layers"] for c in contracts["contracts"] if c.get("containers") == ["digen_core"]
    )
    checked = [set(layer.split(" | ")) for layer in layers]
    shown = [set(re.findall(r"`(\w+)/?`", row[1])) for row in rows("Inside the core")]
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
