"""The search for a split: against trying all of them, and what it leaves off."""

from dataclasses import replace
from statistics import fmean
from typing import get_args

import pytest

from deployments.shipped import find_scenario
from digen_core.control.schedule import GroupOrder, Mixing
from digen_core.planning.search import Choice, Fixed, search, simulate_choice
from digen_core.sim.kinds import DeviceKind

pytestmark = pytest.mark.slow


def without_jitter(name):
    return find_scenario(name).model_copy(update={"jitter": 0.0})


@pytest.mark.ci_but_one
@pytest.mark.parametrize("layout", ["disaggregated", "gap", "tsp"])
def test_the_best_of_all_splits_is_found(layout):
    scenario = without_jitter("C")
    seconds = {
        split: simulate_choice(scenario, Choice(layout, split), num_iterations=2).seconds
        for split in range(4, 16)
    }
    plan = search(scenario, layout)
    assert plan.seconds == pytest.approx(min(seconds.values()))
    assert plan.choice.num_rollout == min(seconds, key=seconds.__getitem__)


LISTED_AND_UNKNOWN = {
    # Seconds in the listed order, where the controller takes all groups to cost the same.
    ("D", 8, "tsp"): 164.4,
    ("D", 8, "elastic"): 136.2,
    ("D", 8, "tcss"): 141.1,
    ("C", 6, "tsp"): 95.7,
    ("C", 6, "elastic"): 70.5,
    ("C", 6, "tcss"): 80.0,
}
"""Without jitter, one group in eight of cost 8; recorded before costs of groups were known."""
GAINS = {("D", "tsp"): 0.2, ("D", "elastic"): 0.4, ("D", "tcss"): 0.25}
OVER_THE_LISTED = {("D", "tsp"): 0.2, ("D", "elastic"): 0.3, ("D", "tcss"): 0.3}


@pytest.mark.nightly
@pytest.mark.parametrize(("name", "split", "layout"), LISTED_AND_UNKNOWN)
def test_groups_of_unequal_cost_are_never_slower_than_in_the_listed_order(name, split, layout):
    scenario = without_jitter(name).model_copy(update={"group_costs": (1.0,) * 7 + (8.0,)})
    plan = search(scenario, layout, Fixed(num_rollout=split))
    most = (1 - GAINS.get((name, layout), 0.0)) * LISTED_AND_UNKNOWN[name, split, layout]
    assert plan.seconds < 1.01 * most


LISTED_AND_KNOWN = {  # seconds without jitter, as docs/scheduling.md has them
    ("C", 6, "gap"): (120.6, 102.7),
    ("C", 6, "tsp"): (95.7, 95.7),
    ("C", 6, "elastic"): (69.8, 69.5),
    ("C", 6, "tcss"): (75.2, 67.1),
    ("D", 8, "gap"): (156.0, 118.2),
    ("D", 8, "tsp"): (155.7, 117.0),
    ("D", 8, "elastic"): (119.6, 74.2),
    ("D", 8, "tcss"): (119.6, 74.2),
    ("F", 8, "gap"): (267.0, 267.0),
    ("F", 8, "tsp"): (237.0, 237.0),
    ("F", 8, "elastic"): (103.6, 103.6),
    ("F", 8, "tcss"): (103.6, 103.6),
}
"""Of one group in eight of cost 8: in the listed order by a controller that knows, as searched."""


@pytest.mark.nightly
@pytest.mark.parametrize(("name", "split", "layout"), LISTED_AND_KNOWN)
def test_the_order_is_never_slower_than_the_listed_one_with_the_same_devices(name, split, layout):
    """With jitter, of which the search knows nothing, in the mean of three draws, too."""
    base = find_scenario(name).model_copy(update={"group_costs": (1.0,) * 7 + (8.0,)})
    plan = search(base.model_copy(update={"jitter": 0.0}), layout, Fixed(num_rollout=split))
    choices = [replace(plan.choice, mixing=Mixing()), plan.choice]
    options = {"num_iterations": 4 if plan.choice.stale_share else 2}
    found = [simulate_choice(base, own, jitter=0.0, **options).seconds for own in choices]
    assert found == pytest.approx(LISTED_AND_KNOWN[name, split, layout], abs=0.1)
    assert found[1] <= (1 - OVER_THE_LISTED.get((name, layout), 0.0)) * found[0]
    means = [
        fmean(
            simulate_choice(base, own, jitter=base.jitter, seed=seed, **options).seconds
            for seed in range(3)
        )
        for own in choices
    ]
    assert means[1] < 1.02 * means[0]


def test_a_device_that_is_late_holds_nobody_up():
    """One of the seven that generate takes ten times as long: 246 s if its work stayed there."""
    scenario = find_scenario("D")
    kinds = {"slow": DeviceKind(count=1, unforeseen=10.0), "rest": DeviceKind(count=15)}
    choice = Choice("elastic", 7, helpers=9, assistants=7)
    usual, late = (
        simulate_choice(own, choice, num_iterations=3).seconds
        for own in (scenario, scenario.model_copy(update={"kinds": kinds}))
    )
    assert late <= 1.2 * usual


STEPS = ((1,) * 7 + (4,), (1, 1, 2, 4))
"""Of the groups in turn, in quarters of the most."""
LISTED_AND_CHOSEN = {  # seconds without jitter, of both, as docs/planning.md has them
    ("C", 6, "tsp"): [(33.0, 30.6), (42.8, 42.7)],
    ("C", 6, "tcss"): [(24.6, 21.8), (33.9, 33.9)],
    ("D", 8, "tsp"): [(54.3, 49.9), (67.1, 64.3)],
    ("D", 8, "elastic"): [(42.6, 42.6), (47.2, 43.1)],
    ("D", 8, "tcss"): [(40.7, 36.2), (51.2, 51.2)],
    ("F", 8, "gap"): [(87.8, 87.8), (171.0, 135.8)],
    ("F", 8, "tsp"): [(83.4, 83.4), (141.0, 131.4)],
}


@pytest.mark.parametrize(
    ("name", "split", "layout"),
    [
        pytest.param(*case, marks=[] if case[0] == "D" else [pytest.mark.nightly])
        for case in LISTED_AND_CHOSEN
    ],
)
def test_the_order_of_groups_of_unequal_steps_is_not_slower_than_the_listed_one(
    name, split, layout
):
    base = find_scenario(name)
    counts = {"helpers": base.devices - split, "assistants": split} if layout == "elastic" else {}
    listed = Choice(layout, split, stale_share=0.5 * (layout == "tcss"), **counts)

    def seconds(choice, quarters, jitter=0.0, seed=0):
        steps = tuple(base.steps // 4 * number for number in quarters)
        scenario = base.model_copy(update={"group_steps": steps})
        num = 4 if choice.stale_share else 2
        options = {"num_iterations": num, "jitter": jitter, "seed": seed}
        return simulate_choice(scenario, choice, **options).seconds

    ways = [Mixing(order, cuts) for cuts in (False, True) for order in get_args(GroupOrder)]
    for quarters, expected in zip(STEPS, LISTED_AND_CHOSEN[name, split, layout], strict=True):
        choices = [replace(listed, mixing=way) for way in ways]
        chosen = min(choices, key=lambda own: seconds(own, quarters))
        found = seconds(listed, quarters), seconds(chosen, quarters)
        assert found == pytest.approx(expected, abs=0.1)
        means = [
            fmean(seconds(own, quarters, base.jitter, seed) for seed in range(3))
            for own in (listed, chosen)
        ]
        assert means[1] < 1.02 * means[0]


def test_a_dear_group_is_cut_where_its_fragments_would_be_waited_for():
    even = search(without_jitter("D"), "elastic", Fixed(num_rollout=8))
    assert even.choice.mixing == Mixing()
    costs = without_jitter("D").model_copy(update={"group_costs": (1.0,) * 7 + (8.0,)})
    mixed = search(costs, "elastic", Fixed(num_rollout=8))
    assert mixed.choice.mixing.cuts
    assert mixed.seconds < 1.1 * even.seconds


def test_help_that_does_not_pay_is_left_off():
    scenario = without_jitter("C").model_copy(update={"helper_in": 300.0, "helper_out": 300.0})
    tsp, elastic = search(scenario, "tsp"), search(scenario, "elastic")
    assert elastic.choice == Choice("elastic", tsp.choice.num_rollout)
    assert elastic.seconds == tsp.seconds


@pytest.mark.ci
def test_stale_groups_are_left_off_where_there_is_no_tail():
    # Trained 30 times as long as generated: the trainers are the bottleneck at any split.
    scenario = without_jitter("C").model_copy(
        update={"c": 30.0, "push": 0.0, "optimizer_step": 0.0, "reward_seconds": 0.0}
    )
    assert search(scenario, "tcss", Fixed(num_rollout=8, helpers=0)).choice.stale_share == 0.0
    assert search(without_jitter("B"), "tcss", Fixed(num_rollout=10)).choice.stale_share > 0


def test_what_is_fixed_stays():
    plan = search(without_jitter("C"), "elastic", Fixed(5, 3, 2, 0.5))
    assert plan.choice == Choice("elastic", 5, 3, 2, 0.5)
    plan = search(without_jitter("C"), "tsp", Fixed(helpers=3, assistants=2, stale_share=0.5))
    assert plan.choice.num_mechanisms == 0  # tsp has none


def test_help_that_is_fixed_narrows_the_splits():
    plan = search(without_jitter("C"), "elastic", Fixed(helpers=10, assistants=6))
    assert plan.choice == Choice("elastic", 6, 10, 6)


def test_at_least_a_quarter_of_the_devices_generate():
    scenario = without_jitter("C").model_copy(update={"c": 100.0})
    assert search(scenario, "tsp").choice.num_rollout == 4


def test_nothing_left_to_choose():
    with pytest.raises(ValueError, match=r"no split of 16 devices has .*helpers=2"):
        search(without_jitter("C"), "tag", Fixed(num_rollout=15, helpers=2))


def test_seeds_are_averaged():
    scenario = find_scenario("C")
    plan = search(scenario, "colocated-strong", seed=5)
    seconds = [
        simulate_choice(
            scenario, plan.choice, num_iterations=4, seed=seed, jitter=scenario.jitter
        ).seconds
        for seed in (5, 6, 7)
    ]
    assert plan.seconds == pytest.approx(sum(seconds) / 3)
    assert len(set(seconds)) == 3


@pytest.mark.ci
def test_a_push_that_takes_long_is_hidden_by_more_versions_of_staleness():
    """Scenario B at a split of 12 to 20: 51.4 s with one version, 46.8 with two, 46.6 with four."""
    far = without_jitter("B").model_copy(update={"push": 40.0})
    free = Fixed(num_rollout=12, helpers=0, assistants=0, stale_share=1.0)
    one = search(far, "tcss", free)
    assert one.choice.max_staleness == 1
    more = search(far, "tcss", replace(free, most_staleness=4))
    assert more.choice.max_staleness == 2, "four bring less than half a percent each"
    assert more.seconds < 0.95 * one.seconds
    assert more.report.max_staleness == 2
    near = search(without_jitter("B"), "tcss", replace(free, most_staleness=4))
    assert near.choice.max_staleness == 1
