"""The tables of docs/architecture.md, which tests hold to the code and to real runs."""

import re

from support.paths import ROOT

ARCHITECTURE = (ROOT / "docs" / "architecture.md").read_text()


def rows(heading: str) -> list[list[str]]:
    """The cells of the first table below a line that begins like this."""
    after = ARCHITECTURE[ARCHITECTURE.index(f"\n{heading}") + 1 :]
    table = after[after.index("| ") :].split("\n\n")[0]
    lines = table.splitlines()[2:]
    return [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in lines]


def names_in(cell: str) -> list[str]:
    """What a cell sets in code, of one word each."""
    return re.findall(r"`([\w.-]+)`", cell)


def entries_of_a_run() -> set[str]:
    """The files and folders of a run's folder that the page names."""
    return {name for row in rows("| path") for name in names_in(row[0])}


def resources_of_workers() -> set[str]:
    """The resources by which the page tells workers apart, but for the names of pools."""
    cells = [row[0] for row in rows("| process")]
    return {name for cell in cells if cell.startswith("workers") for name in names_in(cell)}
