"""Lower bounds: by hand, and never beaten by any layout on any cluster."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from digen_core.control.layout import LAYOUTS
from digen_core.control.schedule import mixings
from digen_core.planning.search import Choice, simulate_choice
from digen_core.sim.bounds import floor_of, lower_bound
from digen_core.sim.kinds import DeviceKind
from digen_core.sim.scenario import Scenario


def test_the_chain_by_hand(scenario):
    # The trainer generates a fragment in 4 s, 4 rewards take 1 s, the last group's two pairs take
    # at least a pack of one on each device, 2 s, then the step: 7.5 s, but the work is more.
    wide = scenario.model_copy(update={"devices": 100})
    assert lower_bound(wide, 50) == 4 + 1 + 2 + 0.5
    # All wait for the push.
    assert lower_bound(wide, None) == 2 + 4 + 1 + 2 + 0.5


def test_the_work_by_hand(scenario):
    # 22 s on two devices, of which one waits 2 s for the push: 12 s, and the step.
    assert lower_bound(scenario, 1) == 12 + 0.5
    assert lower_bound(scenario, None) == 13 + 0.5
    # All groups may be stale: only the work counts, with the step, which takes one device 0.5 s.
    assert lower_bound(scenario, 1, stale_share=1.0) == (22 + 0.5) / 2
    # Packs of one pair are 2 s more.
    assert lower_bound(scenario, 1, pack_size=1) == 13 + 0.5


def test_nothing_can_be_trained_before_a_first_group(scenario):
    # 8 devices generate all of the 16 s in 4 s with the 3 rollout devices waiting 2 s; until the
    # first rewards at 4.5 s, 4.5 * 5 + 2.5 * 3 - 16 = 14 s are lost: (22 + 14 + 6) / 8 + 0.5.
    wide = scenario.model_copy(update={"devices": 8, "reward_servers": 100, "reward_seconds": 0.5})
    assert lower_bound(wide, 3) == pytest.approx(max(5.25 + 0.5, 4 + 0.5 + 2 + 0.5))
    costly = wide.model_copy(update={"c": 10.0})  # W_t is 2 (1 + 20)
    assert lower_bound(costly, 3) == pytest.approx(max((58 + 14 + 6) / 8 + 0.5, 4.5 + 11 + 0.5))


def test_rewards_bind(scenario):
    slow = scenario.model_copy(update={"reward_seconds": 10.0})
    assert lower_bound(slow, 1) == 4 + 40 + 2 + 0.5
    assert lower_bound(slow, 1, stale_share=1.0) == 40


def test_the_chain_is_that_of_the_cheapest_group(scenario):
    # A sample of the groups costs 0.5 and 1.5: a fragment 2.75 s, a pack of one pair 1.5 s.
    mixed = scenario.model_copy(update={"devices": 100, "group_costs": (1.0, 3.0)})
    assert lower_bound(mixed, 50) == 2.75 + 1 + 1.5 + 0.5


def test_devices_may_denoise_faster_than_is_predicted(scenario):
    # 16 s of generation in 8 s, and 6 s of training.
    kinds = {"fast": DeviceKind(count=2, unforeseen=0.5)}
    assert floor_of(scenario.model_copy(update={"kinds": kinds})) == pytest.approx((8 + 6) / 2)


seconds = st.sampled_from([0.0, 0.25, 1.0, 3.0])


@st.composite
def scenarios(draw) -> Scenario:
    group_size, steps = draw(st.integers(1, 6)), draw(st.integers(1, 5))
    counts = draw(st.lists(st.integers(1, 3), min_size=1, max_size=3).filter(lambda c: sum(c) > 1))
    factor, trained = st.sampled_from([0.5, 1.0, 2.0]), draw(st.integers(1, steps))
    few = [own for own in range(1, steps + 1) if int(own * (trained + 0.5) / steps)]
    kinds = {
        f"kind-{number}": DeviceKind(
            count=count,
            generation=draw(factor),
            pack=draw(factor),
            pair=draw(factor),
            unforeseen=draw(factor),
        )
        for number, count in enumerate(counts)
    }
    return Scenario(
        devices=sum(counts),
        prompts=draw(st.integers(1, 6)),
        group_size=group_size,
        trained_per_group=draw(st.integers(1, group_size)),
        steps=steps,
        trained_steps=trained,
        group_steps=draw(st.lists(st.sampled_from(few), max_size=3)),
        group_costs=draw(st.lists(st.sampled_from([0.5, 1.0, 4.0]), max_size=3)),
        fragment_size=draw(st.integers(1, group_size)),
        pack_size=draw(st.integers(1, 5)),
        d0=draw(seconds),
        d1=draw(st.sampled_from([0.25, 1.0])),
        vae=draw(seconds),
        a=draw(seconds),
        c=draw(st.sampled_from([0.25, 1.0])),
        optimizer_step=draw(seconds),
        reward_seconds=draw(seconds),
        reward_servers=draw(st.integers(1, 3)),
        push=draw(seconds),
        helper_in=draw(seconds),
        helper_out=draw(seconds),
        kinds=kinds,
    )


@pytest.mark.ci_but_one
@pytest.mark.parametrize("layout", LAYOUTS)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(scenario=scenarios(), data=st.data())
def test_no_schedule_is_faster(layout, scenario, data):
    switches = LAYOUTS[layout]
    split = None if switches.colocated else data.draw(st.integers(1, scenario.devices - 1))
    share = data.draw(st.sampled_from([0.0, 0.5, 1.0])) if switches.stale else 0.0
    trainers = scenario.devices - (split or 0)
    choice = Choice(
        layout,
        split,
        helpers=data.draw(st.integers(0, trainers)) if switches.trainers_help else 0,
        assistants=data.draw(st.integers(0, split)) if switches.rollouts_train else 0,
        stale_share=share,
        mixing=data.draw(st.sampled_from(mixings(scenario.workload))),
    )
    report = simulate_choice(scenario, choice, num_iterations=10 if share else 3)
    bound = lower_bound(
        scenario, split, stale_share=share, pack_size=None if switches.packed else 1
    )
    assert report.max_staleness <= bool(share)
    if share:  # what is generated ahead at the begin of a window may be more than at its end
        per_iteration = report.iteration_ends[-1] / len(report.iteration_ends)
    else:
        per_iteration = report.seconds
    assert per_iteration >= bound * (1 - 1e-9)
