"""Several updates of an iteration, simulated: times worked out by hand, and who waits for whom."""

import pytest

from deployments.shipped import SCENARIOS, find_scenario
from digen_core.planning.search import Choice, search, simulate_choice
from support.paths import ROOT

pytestmark = pytest.mark.slow


def seconds(scenario, layout, **changes):
    own = scenario.model_copy(update=changes)
    return simulate_choice(own, Choice(layout, 1), num_iterations=3).seconds


def test_behind_a_barrier_an_update_costs_its_step(scenario):
    # 4 fragments of 4 s, the last reward, 2 packs of 2 s and a step, twice, and the push.
    assert 16 + 0.25 + 2 * (4 + 0.5) + 2 == seconds(scenario, "disaggregated", updates=2) == 27.25


def test_by_groups_the_first_update_is_hidden_behind_the_second_ones_groups(scenario):
    # The first one's pairs are trained and stepped from 8.25 s to 12.75 s.
    assert 16 + 0.25 + 4 + 0.5 + 2 == seconds(scenario, "gap", updates=2) == 22.75
    assert seconds(scenario, "gap") == 22.75


def test_by_samples_it_waits_for_the_last_group(scenario):
    # One pair of the first update is trained before, the other from 16.25 s on; 25.25 s in all, or
    # 22.75 s in an iteration whose first update has both samples of the first group.
    assert 22.75 < seconds(scenario, "gap", updates=2, dealt_by="samples") <= 25.25


def test_epochs_train_each_pair_again(scenario):
    twice = seconds(scenario, "disaggregated", updates=2, epochs=2)
    assert 16 + 0.25 + 2 * (8 + 0.5) + 2 == twice == 35.25


def published(name, dealt_by):
    """Return a row of the table of docs/scheduling.md by the headings of its columns."""
    lines = (ROOT / "docs/scheduling.md").read_text().splitlines()
    (start,) = (place for place, line in enumerate(lines) if line.startswith("| scenario |"))
    (row,) = (line for line in lines[start:] if line.startswith(f"| {name} |") and " / " in line)
    _, *heading = (cell.strip() for cell in lines[start].strip("|").split("|"))
    _, *cells = (cell.strip() for cell in row.strip("|").split("|"))
    place = ("", "groups", "samples").index(dealt_by)
    found = [float(cell.split(" / ")[place]) for cell in cells]
    return dict(zip(heading, found, strict=True))


EVERY = sorted(path.stem for path in SCENARIOS.glob("*.toml"))
LEAST = {  # of the time behind a barrier, what they save in every scenario
    "groups": {"gap": 0.09, "elastic": 0.19},
    "samples": {"gap": 0.0005, "elastic": 0.18},
}


@pytest.mark.ci
@pytest.mark.parametrize("dealt_by", ["groups", "samples"])
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.nightly] * (name != "D")) for name in EVERY]
)
def test_overlap_pays_with_two_updates_too(name, dealt_by):
    own = find_scenario(name).model_copy(update={"updates": 2, "dealt_by": dealt_by})
    found = {layout: search(own, layout).seconds for layout in ("disaggregated", "gap", "elastic")}
    expected = published(name, dealt_by)
    assert found == pytest.approx({layout: expected[layout] for layout in found}, abs=0.06)


@pytest.mark.parametrize("dealt_by", ["groups", "samples"])
def test_overlap_pays_by_what_the_page_says_in_every_scenario(dealt_by):
    saved: dict[str, list[float]] = {"gap": [], "elastic": []}
    for name in EVERY:
        seconds = published(name, dealt_by)
        for layout, found in saved.items():
            found.append(1 - seconds[layout] / seconds["disaggregated"])
    for layout, found in saved.items():
        assert min(found) > LEAST[dealt_by][layout]
    page = " ".join((ROOT / "docs/scheduling.md").read_text().split())
    gap, elastic = ([f"{100 * end(own):.2g}" for end in (min, max)] for own in saved.values())
    said = f"dealt by {dealt_by} `gap` by {gap[0]} to {gap[1]}%, `elastic` by {elastic[0]} to"
    assert f"{said} {elastic[1]}%" in page
