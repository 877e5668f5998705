"""Pages that must stay true: the configuration reference, troubleshooting, links, tutorials."""

import re
from pathlib import Path

import pytest

from deployments.operation.prefect_server import COMMAND_SETTINGS, RECORDER_SETTINGS
from digen_core.config.reference_page import reference
from digen_core.trace.spans import SCHEMA
from support.pages import PAGES
from support.paths import ROOT

TROUBLES = (ROOT / "docs" / "troubleshooting.md").read_text()
MESSAGES = re.findall(r"^### `(.*)`$", TROUBLES, re.MULTILINE)


def source() -> str:
    """All code, as one text in which a message that is cut into several literals is whole."""
    folders = ("deployments", "digen_core", "flows", "tasks")
    files = [file for folder in folders for file in sorted((ROOT / folder).rglob("*.py"))]
    text = "\n".join(file.read_text() for file in files)
    text = re.sub(r"[\"']\s*\n\s*f?[\"']", "", text)
    return re.sub(r"\{number_of\((.*?), '([\w ]+)'\)\}", r"{\1} \2s", text)


SOURCE = source()


def test_the_configuration_reference_is_what_the_command_prints():
    assert (ROOT / "docs" / "configuration.md").read_text() == reference()


def test_the_columns_of_spans_are_named():
    page = (ROOT / "docs" / "report.md").read_text()
    (row,) = (line for line in page.splitlines() if line.startswith("| `spans/iteration-"))
    named = re.sub(r" \(.*?\)", "", row.partition("one row per span: ")[2].partition(";")[0])
    assert [name.strip() for name in named.split(",")] == SCHEMA.names


def test_troubleshooting_has_messages():
    assert len(MESSAGES) >= 15
    assert len(set(MESSAGES)) == len(MESSAGES)


@pytest.mark.parametrize("message", MESSAGES)
def test_every_message_of_troubleshooting_is_one_that_the_code_says(message):
    """``...`` stands for what differs; each part between them is in the code, in this order."""
    parts = [re.escape(part.strip()) for part in message.split("...") if part.strip()]
    assert sum(map(len, parts)) >= 15, "too little to be found by"
    assert re.search(".{0,60}".join(parts), SOURCE), message


@pytest.mark.parametrize(
    "page",
    [*PAGES, *(ROOT / f"{name}.md" for name in ("CONTRIBUTING", "SECURITY", "CHANGELOG"))],
    ids=lambda page: page.name,
)
def test_links_lead_somewhere(page):
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match("[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), f"{page.name}: {target}"
        if anchor:
            assert anchor in anchors(file), f"{page.name}: {target}"


def anchors(page: Path) -> set[str]:
    """The names that GitHub gives a page's headings."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_page_is_in_the_index():
    index = (ROOT / "docs" / "index.md").read_text()
    for page in sorted((ROOT / "docs").rglob("*.md")):
        name = page.relative_to(ROOT / "docs").as_posix()
        assert f"]({name}" in index or name.startswith("adr/") or name == "index.md", name


def test_the_settings_of_a_server_are_those_of_a_command():
    page = (ROOT / "docs" / "prefect.md").read_text()
    named = dict(re.findall(r"^    export (PREFECT_SERVER_\w+)='?([^'\n]+)'?$", page, re.M))
    assert named.items() >= RECORDER_SETTINGS.items()
    assert named.items() <= {**COMMAND_SETTINGS, **RECORDER_SETTINGS}.items()
