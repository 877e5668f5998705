"""TAG against an independent simulation of the same mechanism, at the same split."""

import pytest

from deployments.shipped import find_scenario
from digen_core.planning.search import Choice, Fixed, search, simulate_choice
from support.independent_tag import seconds_of_tag

RECORDED = {("D", 4): 78.1, ("F", 12): 111.8, ("A2", 8): 132.8}  # of an earlier one
CASES = [pytest.param(*own, marks=[pytest.mark.ci] * (own != ("D", 4))) for own in RECORDED]


@pytest.mark.parametrize(("name", "split"), CASES)
def test_tag_is_as_fast_as_an_independent_simulation(name, split):
    scenario = find_scenario(name)
    seconds = search(scenario, "tag", Fixed(num_rollout=split)).seconds
    assert seconds <= 1.02 * RECORDED[name, split]
    # That one decides at every denoising step; a controller hears of the end of fragments only.
    assert seconds <= 1.05 * seconds_of_tag(scenario, split)


@pytest.mark.parametrize(("name", "split"), RECORDED)
def test_helpers_turn_once_in_each_direction(name, split):
    scenario = find_scenario(name)
    helpers = scenario.devices - split
    report = simulate_choice(scenario, Choice("tag", split, helpers), num_iterations=4)
    switches = sum(span.kind == "switch" for span in report.spans)
    assert switches == 2 * helpers * 4  # four iterations
