"""The formulas of the layouts against numbers by hand and against simulations."""

import pytest

from digen_core.control.costs import DeviceCosts, Linear
from digen_core.control.layout import LAYOUTS
from digen_core.planning.search import Choice, simulate_choice
from digen_core.sim.closed_forms import FORMULAS, Terms
from digen_core.sim.scenario import Scenario

MANY_SMALL_GROUPS = Scenario(
    devices=8,
    prompts=320,
    group_size=4,
    trained_per_group=4,
    steps=10,
    trained_steps=5,
    fragment_size=1,
    pack_size=4,
    d0=0.02,
    d1=0.08,
    a=0.1,
    c=0.1,
    optimizer_step=1.0,
    reward_seconds=0.1,
    reward_servers=4,
    push=1.0,
    switch_colocated=4.0,
    helper_in=1.0,
    helper_out=1.0,
)

TERMS = Terms(
    generation=120.0,
    training=60.0,
    training_unpacked=90.0,
    rollout_speed=4.0,
    trainer_speed=2.0,
    num_groups=10,
    fragment=2.0,
    reference=DeviceCosts(step=Linear(), pack=Linear()),
    reward=5.0,
    group_reward=0.5,
    optimizer_step=1.0,
    push=2.0,
    colocated_switch=6.0,
    helper_switch=3.0,
    stale_share=0.5,
)


@pytest.mark.parametrize(
    ("layout", "seconds"),
    [
        ("colocated", 20 + 5 + 15 + 1 + 6 + 2),
        ("colocated-strong", 20 + 0.5 + 10 + 1 + 6 + 2),
        ("disaggregated", 30 + 0.5 + 45 + 1 + 2),
        ("gap", 3 + 4.5 + 9 * 4.5 + 0.5 + 1 + 2),  # p = 3, q = 4.5
        ("tsp", 3 + 3 + 9 * 3 + 0.5 + 1 + 2),  # q = 3
        ("tag", 3 + 3 + 9 * 3 + 0.5 + 1 + 2),  # h = 4/6 (30 + 3 - 3 - 30) = 0: no help
        ("tcss", 31.0),  # the tail of 6.5 s is filled by 15 s of stale generation
        ("elastic", 30 + 3 + 0.5 + 1 + 2),
    ],
)
def test_formulas_by_hand(layout, seconds):
    assert FORMULAS[layout](TERMS) == pytest.approx(seconds)


def test_help_by_hand():
    terms = Terms(**{f: getattr(TERMS, f) for f in Terms.__slots__} | {"generation": 240.0})
    # h = 4/6 (60 + 3 - 3 - 30) = 20 s of generation by all, then switch, train, update.
    assert FORMULAS["tag"](terms) == pytest.approx(20 + 3 + 30 + 1 + 2)
    assert FORMULAS["tsp"](terms) == pytest.approx(6 + 3 + 9 * 6 + 0.5 + 1 + 2)


def test_a_small_stale_share_fills_a_part_of_the_tail():
    terms = Terms(**{f: getattr(TERMS, f) for f in Terms.__slots__} | {"stale_share": 0.1})
    assert FORMULAS["tcss"](terms) == pytest.approx(31 + (1 - 3 / 6.5) * 6.5)


@pytest.mark.ci_but_one
@pytest.mark.parametrize("layout", FORMULAS)
def test_simulations_meet_the_formulas(layout):
    scenario, switches = MANY_SMALL_GROUPS, LAYOUTS[layout]
    share = 0.5 if switches.stale else 0.0
    splits = [None] if switches.colocated else range(2, scenario.devices)
    predicted, split = min(
        ((FORMULAS[layout](Terms.of(scenario, split, share)), split) for split in splits),
    )
    helps = switches.trainers_help and not switches.stale  # the formula of tcss is without help
    choice = Choice(
        layout,
        split,
        helpers=scenario.devices - split if helps else 0,
        assistants=split if helps and switches.rollouts_train else 0,
        stale_share=share,
    )
    report = simulate_choice(scenario, choice, num_iterations=5 if share else 2)
    assert report.seconds == pytest.approx(predicted, rel=0.02)
