"""The page of the architecture, and paths in all pages, beside the code that they describe."""

import re
import signal
import tomllib
from dataclasses import fields
from typing import get_args

import pytest

from deployments.stopping import INTERRUPTED, STOP_SECONDS
from digen_core.config.keys import field_of
from digen_core.control.layout import LAYOUTS
from digen_core.control.protocol import Event, Instruction
from digen_core.trace.kinds import SPAN_KINDS
from flows.runtime.fleet.losses import MAX_LOSSES
from flows.runtime.fleet.waiting import STATE
from support.architecture import (
    ARCHITECTURE,
    entries_of_a_run,
    names_in,
    resources_of_workers,
    rows,
)
from support.pages import PAGES
from support.paths import ROOT
from tasks.cluster.presence import ROLES

TOP = "deployments|digen_core|flows|tasks|tests"
FOLDERS = [path for top in TOP.split("|")[:-1] for path in sorted((ROOT / top).rglob("*.py"))]
SOURCE = "\n".join(path.read_text() for path in FOLDERS)
A_FAMILY = "digen_core/models/families/FAMILY.py"  # one to be written
PATHS = re.compile(rf"`((?:{TOP})/[\w./-]*)`")


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


RUNTIME = "\n".join(
    path.read_text() for top in ("flows", "tasks") for path in (ROOT / top).rglob("*.py")
)
WITHIN_OTHERS = {
    "PullError",  # a push that fails is tried again, and in the end a TaskFailedError says it
    "ReceiptError",  # a TaskFailedError says it
    "RunCancelledError",  # the row of Ctrl-C
    "StateLostError",  # the run resumes by itself
    "VersionError",  # a task's
}


def test_the_errors_that_end_a_run_are_those_of_the_table():
    """Plain exceptions of the runtime are caught by it."""
    ending = set(re.findall(r"^class (\w+)\((?!Exception\b)\w*Error\):", RUNTIME, re.MULTILINE))
    shown = {n for row in rows("| what happens") for n in names_in(row[1]) if n.endswith("Error")}
    assert shown == ending - WITHIN_OTHERS
    assert ending >= WITHIN_OTHERS


def test_what_happens_when_something_fails_has_the_numbers_of_the_code():
    table = {row[0]: row[1] for row in rows("| what happens")}
    text = " ".join([*table, *table.values()])
    keys = re.findall(r"`(cluster\.\w+)`", text)
    assert len(keys) >= 3
    assert all(field_of(key) for key in keys)
    assert STATE in text
    (times,) = re.findall(r"lost (\w+) times", text)
    assert {"two": 2, "three": 3, "four": 4}[times] == MAX_LOSSES
    stopped = next(seen for what, seen in table.items() if "Ctrl-C" in what)
    assert f"exit code {INTERRUPTED}, of SIGTERM {128 + signal.SIGTERM}" in stopped
    assert "ten seconds" in stopped
    assert STOP_SECONDS < 10


def test_a_readme_names_of_a_run_what_the_table_has():
    text = (ROOT / "README.md").read_text()
    named = set(re.findall(r"^    runs/NAME/([\w.]+)", text, re.MULTILINE))
    assert len(named) > 8
    assert named <= entries_of_a_run()


def test_every_entry_of_a_run_folder_is_written_by_the_code():
    """Real runs are held against it in tests/integration/test_post_train.py."""
    named = entries_of_a_run()
    assert not [name for name in named if not re.search(rf'["/]{re.escape(name)}["/]', SOURCE)]


def test_workers_are_told_apart_by_their_roles():
    """Real runs are held against it in tests/integration/test_reward_pools.py."""
    assert resources_of_workers() == set(ROLES)


def test_the_import_layers_are_those_that_are_checked():
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    layers = next(
        c["layers"] for c in contracts["contracts"] if c.get("containers") == ["digen_core"]
    )
    checked = [set(layer.split(" | ")) for layer in layers]
    shown = [set(re.findall(r"`(\w+)/?`", row[1])) for row in rows("| row")]
    assert shown == checked
    assert len(checked) <= 10


@pytest.mark.parametrize(
    "page", [*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md"], ids=lambda page: page.name
)
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


@pytest.mark.parametrize("top", ["deployments", "digen_core", "flows", "tasks"])
def test_no_file_is_longer_than_contributing_says(top):
    page = (ROOT / "CONTRIBUTING.md").read_text()
    (most,) = re.findall(r"Files of about 300 lines, never above (\d+)", page)
    lengths = {path: len(path.read_text().splitlines()) for path in (ROOT / top).rglob("*.py")}
    assert not {path: length for path, length in lengths.items() if length > int(most)}
