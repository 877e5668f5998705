"""Which steps groups train that have their own number of them."""

import pytest

from digen_core.config.run import RunConfig
from digen_core.control.schedule import own_steps_in
from digen_core.data.prompts import Prompt
from digen_core.planning.job import group_steps, typical_workload, with_steps, workload_of
from digen_core.rollout.steps import (
    num_steps_taken,
    own_steps_of_groups,
    steps_of_group,
    steps_of_iteration,
    steps_to_keep,
)


def config_of(transition="flow_sde", **algorithm) -> RunConfig:
    rollout = {"num_steps": 8, "group_size": 2, "prompts_per_iteration": 3}
    tree = {"rollout": {**rollout, "transition": transition}, "algorithm": algorithm}
    return RunConfig.model_validate(tree)


def test_the_first_steps_of_each_by_hand():
    config = config_of(trained_fraction=0.5)
    found = own_steps_of_groups(config, 0, 3, (8, 2, 5))
    assert found == (((0, 1, 2, 3),) * 2, ((0,),) * 2, ((0, 1),) * 2)
    assert own_steps_of_groups(config, 0, 3) == ()
    assert [steps_to_keep(config, 0, 0, steps) for steps in (8, 5)] == [(0, 1, 2, 3), (0, 1)]
    clean = config_of(type="diffusion_nft")
    assert [steps_to_keep(clean, 0, 0, steps) for steps in (8, 5)] == [(7,), (4,)]


def test_a_window_is_at_one_place_for_all():
    config = config_of(window=[2, 0, 4])
    for iteration in range(5):
        a, b = (steps_of_iteration(config, iteration, steps) for steps in (8, 5))
        assert a == b == steps_of_iteration(config, iteration)


def test_each_sample_has_its_own_of_its_groups_steps():
    dance = {"type": "dance_grpo", "steps_drawn_for": "sample", "trained_fraction": 0.5}
    config = config_of(transition="dance", **dance)
    found = own_steps_of_groups(config, 0, 3, (8, 3, 8))
    assert [{len(own) for own in group} for group in found] == [{3}, {1}, {3}]
    assert max(step for own in found[1] for step in own) <= 1
    assert (found[0], found[2]) == own_steps_of_groups(config, 0, 3)[::2], "as without the others"


LEVELS = {"first_level": 0, "num_levels": 2, "trained_fraction": 1.0}


@pytest.mark.parametrize(
    ("algorithm", "differ"),
    [
        ({"type": "awm", "own_levels": True, **LEVELS}, True),
        ({"type": "diffusion_nft", "own_levels": True, "trained_fraction": 0.5}, True),
        ({"type": "diffusion_nft", "own_levels": True, "num_levels": 2}, True),
        ({"type": "dance_grpo", "steps_drawn_for": "sample"}, False),
    ],
    ids=str,
)
def test_levels_are_drawn_anew_in_each_epoch_and_steps_are_not(algorithm, differ):
    train = {"epochs": 3, "updates_per_iteration": 3}
    once = config_of("dance" if algorithm["type"] == "dance_grpo" else "cps", **algorithm)
    config = RunConfig.model_validate({**once.model_dump(), "train": train})
    own, before = (own_steps_of_groups(c, 4, 20) for c in (config, once))
    by_epoch = [[own_steps_in(group, 2, epoch) for group in own] for epoch in range(3)]
    assert tuple(by_epoch[0]) == before, "one epoch is the first of three"
    assert (len({str(drawn) for drawn in by_epoch}) == 3) is differ
    assert all(len(drawn) == 2 for drawn in by_epoch[2])
    most = min(3 * config.num_trained_steps, 8) if differ else config.num_trained_steps
    assert config.most_reference_steps == most
    assert own_steps_in((), 2, 1) == ()


def test_a_window_of_a_group_is_its_noise_and_what_is_kept():
    config = config_of(window=[1, 0, 7], window_drawn_for="group")
    found = [steps_of_group(config, 2, group, 8) for group in range(30)]
    assert len({*found}) > 3
    own = own_steps_of_groups(config, 2, 30)
    for group, steps in enumerate(found):
        assert steps.noisy == steps.trained == own[group][0] == own[group][1]
        assert steps_to_keep(config, 2, group, 8) == steps.noisy
        assert {*steps.noisy} <= {*steps_of_iteration(config, 2).noisy}


def test_fewer_steps_after_a_sliding_window_by_hand():
    """Of eight steps, a window of two at 0, 1, ...; int((8 - last) / 2) - 1 follow, or one."""
    flash = {"type": "mix_grpo", "window_size": 2, "iterations_per_window": 1}
    config = config_of(**flash, tail_fraction=0.5)
    assert [num_steps_taken(config, iteration) for iteration in range(5)] == [4, 5, 5, 6, 7]
    assert steps_of_iteration(config, 1, 5) == ((1, 2), (1, 2)), "as of eight steps"
    assert steps_to_keep(config, 4, 0, 7) == (4, 5)
    prompts = [Prompt("a"), Prompt("b"), Prompt("c")]
    assert group_steps(config, [3, 3, 3], prompts) == (6, 6, 6)
    run = config.model_copy(update={"num_iterations": 5})
    shape = typical_workload(run)
    assert (shape.num_steps, shape.group_steps) == (5, ()), "the mean of 4, 5, 5, 6 and 7"
    assert typical_workload(config_of(**flash)).num_steps == 8
    assert num_steps_taken(config_of(**flash), 0) == 8


def test_what_prompts_say_of_a_workload():
    config, prompts = config_of(), [Prompt("a", num_steps=4), Prompt("b"), Prompt("c", num_steps=2)]
    assert group_steps(config, [0] * 3, prompts) == (4, 8, 2)
    assert group_steps(config, [0] * 2, [Prompt("a"), Prompt("b", num_steps=8)]) == ()
    shape = with_steps(workload_of(config), config, (4, 8, 2))
    assert (shape.group_steps, shape.group_trained) == ((4, 8, 2), (3, 7, 1))
    assert shape.mean_steps == pytest.approx(14 / 3)
    assert shape.num_pairs(7) == 2 * (3 + 7 + 1)


def test_an_iteration_like_those_of_a_run_has_its_prompts_in_the_mean():
    config = config_of()
    rollout = config.rollout.model_copy(update={"prompts_per_iteration": 6})
    config = config.model_copy(update={"rollout": rollout})
    never = Prompt("never", num_steps=7, weight=0.0)
    prompts = [Prompt("a", num_steps=2, weight=3.0), never, Prompt("b"), Prompt("c", num_steps=2)]
    shape = typical_workload(config, [*prompts, Prompt("d", num_steps=4)])
    assert sorted(shape.group_steps) == [2, 2, 2, 2, 4, 8], "of a weight of 6: 4, 1 and 1"
    assert sorted(shape.group_trained) == [1, 1, 1, 1, 3, 7]
    assert typical_workload(config, []) == typical_workload(config, prompts[2:3])


@pytest.mark.parametrize(
    ("algorithm", "weights"),
    [
        ({}, [1.0, 7 / 3, 7.0]),  # of 7, 3 and 1 trained steps
        ({"window": [2, 0, 2]}, [1.0, 1.0, 1.0]),
        ({"type": "diffusion_nft", "trained_fraction": 0.5}, [1.0, 2.0, 4.0]),
        ({"type": "dgpo", "num_levels": 1}, [1.0, 1.0, 1.0]),
    ],
)
def test_each_sample_counts_the_same_by_hand(algorithm, weights):
    config = config_of(**algorithm)
    found = [config.pair_weight(steps) for steps in (8, 4, 2)]
    assert found == pytest.approx(weights)
    counts = [config.algorithm.num_trained(steps) for steps in (8, 4, 2)]
    assert [n * w for n, w in zip(counts, found, strict=True)] == pytest.approx(
        [config.num_trained_steps] * 3
    )
