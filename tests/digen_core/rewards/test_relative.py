"""Rewards that compare the samples of a group: win rates, and what is shown of them."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.stats import rankdata

from digen_core.config.rewards import called
from digen_core.config.run import RunConfig
from digen_core.rewards.failures import component_means, settle
from digen_core.rewards.relative import win_rates, without_relative
from digen_core.rewards.scoring import score_images
from digen_core.training.advantages import advantages_of

NAN = float("nan")
SCORES = arrays(
    np.float64, st.integers(1, 12), elements=st.floats(-1e308, 1e308) | st.sampled_from([0.0, 1.0])
)


def test_it_is_the_share_of_the_others_that_are_worse_and_half_of_the_equal_ones():
    rates, ties = win_rates(np.array([3.0, 1.0, 3.0, 2.0]))
    # 3 beats 1 and 2 and ties with the other 3; 1 beats none; 2 beats 1.
    assert rates.tolist() == pytest.approx([2.5 / 3, 0, 2.5 / 3, 1 / 3])
    assert ties.tolist() == pytest.approx([1 / 3, 0, 1 / 3, 0])


def test_scores_that_differ_by_no_more_than_the_margin_tie():
    rates, ties = win_rates(np.array([0.0, 1.0, 2.5]), margin=1.0)
    assert rates.tolist() == [0.5 / 2, 0.5 / 2, 1.0]
    assert ties.tolist() == [0.5, 0.5, 0.0]


def test_a_sample_alone_wins_half():
    assert [own.tolist() for own in win_rates(np.array([7.0]))] == [[0.5], [0.0]]
    assert [own.tolist() for own in win_rates(np.array([]))] == [[], []]


@given(SCORES, st.sampled_from([0.0, 0.5, 1e300]))
def test_the_rates_of_a_group_add_up_to_half_of_it(scores, margin):
    rates, ties = win_rates(scores, margin)
    assert rates.sum() == pytest.approx(len(scores) / 2)
    assert ((rates >= 0) & (rates <= 1) & (ties >= 0) & (ties <= 1)).all()


@given(SCORES, st.randoms(use_true_random=False))
def test_they_go_with_their_samples_and_depend_on_the_order_alone(scores, random):
    order = list(range(len(scores)))
    random.shuffle(order)
    rates, _ = win_rates(scores)
    np.testing.assert_array_equal(win_rates(scores[order])[0], rates[order])
    if len(scores) > 1:  # mean ranks of equal scores, from 0 to 1
        wanted = (rankdata(scores) - 1) / (len(scores) - 1)
        np.testing.assert_allclose(rates, wanted, rtol=1e-12)


@given(st.integers(2, 12), st.floats(-5, 5))
def test_where_all_tie_all_win_half(count, score):
    rates, ties = win_rates(np.full(count, score))
    assert set(rates) == {0.5}
    assert set(ties) == {1.0}


def scored(values, weight=0.0, **of):
    """Return the config of a group of four with ranks of scores, and what is known of the group."""
    own = {"type": "function", "function": "t:own", "weight": weight, **of}
    ranks = {"type": "ranked", "of": "own", "weight": 2.0}
    tree = {"rewards": {"picks": ranks, "own": own}, "rollout": {"group_size": 4}}
    config = RunConfig.model_validate(tree)
    function = {"own": lambda images, prompts: torch.tensor(values)}
    found = score_images(function, called(config.rewards), torch.zeros(4, 3, 2, 2), ["a"] * 4)
    return config, settle(found, config.rewards)


def test_a_reward_that_ranks_another_one_counts_by_ranks():
    _, columns = scored([5.0, -1.0, 5.0, 7.0])
    assert columns["picks/score"].tolist() == [0.5, 0.0, 0.5, 1.0]
    assert columns["picks/ties"].tolist() == [1 / 3, 0, 1 / 3, 0]
    assert columns["reward"].tolist() == [1.0, 0.0, 1.0, 2.0]
    _, columns = scored([5.0, -1.0, 5.0, 7.0], weight=0.5)
    assert columns["reward"].tolist() == [1 + 2.5, -0.5, 1 + 2.5, 2 + 3.5]


def test_settling_twice_changes_nothing():
    config, columns = scored([5.0, NAN, 5.0, 7.0], weight=1.0, on_failure="neutral")
    again = settle(columns, config.rewards)
    assert {name: own.tolist() for name, own in again.items()} == {
        name: own.tolist() for name, own in columns.items()
    }


def test_a_sample_without_a_score_has_no_rank_and_counts_with_the_mean_of_the_others():
    _, columns = scored([5.0, NAN, 6.0, 7.0], on_failure="neutral")
    assert columns["picks/score"].tolist() == [0.0, 0.5, 0.5, 1.0]
    assert columns["picks/failed"].tolist() == [0, 1, 0, 0]
    assert "picks/ties" not in columns  # as of all rewards whose failure does not end the run


def test_a_group_without_any_score_is_left_out():
    config, columns = scored([NAN] * 4, on_failure="neutral")
    assert columns["reward"].tolist() == [0.0] * 4
    found = advantages_of(config, {0: columns}, {0: "a"}, {})
    assert found.skipped == (0,)


def test_a_score_that_drops_its_group_drops_it_by_its_ranks_too():
    config, columns = scored([5.0, NAN, 6.0, 7.0], on_failure="drop")
    assert advantages_of(config, {0: columns}, {0: "a"}, {}).dropped == {0}


def test_a_group_whose_scores_all_tie_has_no_signal():
    config, columns = scored([5.0] * 4)
    assert advantages_of(config, {0: columns}, {0: "a"}, {}).skipped == (0,)


def test_advantages_are_those_of_the_ranks_whatever_the_scale_of_the_scores():
    found = [
        advantages_of(config, {0: columns}, {0: "a"}, {}).values[0]
        for config, columns in (scored([1e-9, 2e-9, 4e-9, 3e-9]), scored([1.0, 20.0, 4e9, 300.0]))
    ]
    np.testing.assert_array_equal(*found)


def test_no_mean_is_shown_of_what_is_the_same_in_every_iteration():
    config, columns = scored([5.0, -1.0, 5.0, 7.0])
    means = component_means(without_relative(columns, config.rewards))
    assert means == {"own/score": 4.0, "picks/ties": pytest.approx(1 / 6)}
    config, columns = scored([5.0, -1.0, 5.0, 7.0], weight=0.5)
    means = component_means(without_relative(columns, config.rewards))
    assert means["reward"] == 0.5 * 4.0  # of the others alone
    assert "picks/score" not in means


def test_without_such_rewards_everything_is_shown():
    config = RunConfig()
    columns = {"reward": np.ones(2), "shapes/score": np.ones(2)}
    assert without_relative(columns, config.rewards) == columns
