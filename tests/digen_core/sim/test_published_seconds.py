"""The figures of docs/scheduling.md and README.md, at the splits that the search found."""

import re
from dataclasses import replace
from itertools import takewhile

import pytest

from deployments.shipped import find_scenario
from digen_core.planning.search import Fixed, search
from digen_core.sim.bounds import floor_of
from support.paths import ROOT

# Rollout devices, helpers, assistants: of tsp, tag, elastic, and tcss with half the groups stale.
CHOICES = {
    "A": ((16,), (8, 23, 0), (8, 24, 8), (16, 0, 4)),
    "A2": ((12,), (8, 23, 0), (8, 24, 8), (9, 3, 2)),
    "B": ((10,), (8, 11, 0), (9, 22, 9), (8, 2, 0)),
    "B2": ((8,), (8, 0, 0), (11, 21, 11), (8, 0, 1)),
    "C": ((6,), (4, 12, 0), (4, 12, 4), (4, 2, 2)),
    "D": ((12,), (4, 12, 0), (7, 9, 7), (13, 0, 2)),
    "E": ((16,), (8, 24, 0), (12, 20, 12), (16, 0, 0)),
    "F": ((16,), (9, 23, 0), (8, 23, 8), (19, 0, 0)),
    "G": ((10,), (10, 0, 0), (10, 0, 0), (8, 0, 0)),
    "H": ((8,), (8, 0, 0), (8, 0, 0), (8, 0, 2)),
}
NIGHTLY = ("A2", "B", "B2", "D", "E", "F", "G", "H")  # each change simulates two of them


def published(name: str, page: str = "docs/scheduling.md") -> dict[str, float]:
    """Return a row of a page's table by the headings of its columns."""
    lines = (ROOT / page).read_text().splitlines()
    (start,) = (place for place, line in enumerate(lines) if line.startswith("| recipe |"))
    heading, *rows = takewhile(lambda line: line.startswith("|"), lines[start:])
    (row,) = (line for line in rows if re.match(rf"\| {name} .*\d \|$", line))
    columns = [[cell.strip() for cell in line.strip("|").split("|")] for line in (heading, row)]
    return {key: float(cell) for key, cell in list(zip(*columns, strict=True))[1:]}


@pytest.mark.ci
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.nightly] * (name in NIGHTLY)) for name in CHOICES],
)
def test_a_schedule_takes_what_the_docs_say(name):
    scenario, expected = find_scenario(name), published(name)
    tsp, tag, elastic, tcss = (Fixed(*choice) for choice in CHOICES[name])
    for column, layout, fixed in (
        ("colocated", "colocated", Fixed()),
        ("colocated-strong", "colocated-strong", Fixed()),
        ("tsp", "tsp", tsp),
        ("tag", "tag", tag),
        ("elastic", "elastic", elastic),
        ("tcss 0.5", "tcss", replace(tcss, stale_share=0.5)),
    ):
        seconds = search(scenario, layout, fixed).seconds
        assert seconds == pytest.approx(expected[column], abs=0.06), column
    assert floor_of(scenario) == pytest.approx(expected["floor"], abs=0.06)
    assert floor_of(scenario) / seconds == pytest.approx(expected["tcss's share"], abs=1e-3)


@pytest.mark.parametrize("name", [name for name in CHOICES if name not in ("A2", "F", "G", "H")])
def test_the_readme_says_the_same(name):
    expected = published(name)
    del expected["tsp"], expected["tcss's share"]
    assert list(published(name, "README.md").values()) == list(expected.values())
