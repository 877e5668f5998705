"""Which candidates are chosen: the best and the worst of those that lack no number."""

import numpy as np
import pytest

from digen_core.config.run import RunConfig
from digen_core.training.screening import chosen_candidates, rank_correlation


def config_of(rewards=None, **algorithm):
    tree = {
        "rollout": {"group_size": 3, "fragment_size": 1, "screening": {"candidates": 6}},
        "algorithm": algorithm,
        "rewards": rewards or {"smooth_rewards:brightness": 1.0},
    }
    return RunConfig.model_validate(tree)


def column_of(*rewards, **others):
    return {"reward": np.array(rewards, float), **others}


def test_the_best_and_the_worst_are_chosen():
    """Of three the two best and the worst one, in the order of the candidates."""
    assert chosen_candidates(config_of(), column_of(0.5, 3.0, -1.0, 2.0, 0.0, 1.0)) == (1, 2, 3)


def test_candidates_without_numbers_are_none_of_them():
    column = column_of(0.5, 3.0, -1.0, 2.0, 0.0, 1.0)
    assert chosen_candidates(config_of(), column, {1, 2}) == (3, 4, 5)
    assert chosen_candidates(config_of(), column, {0, 1, 2}) == (3, 4, 5)
    assert chosen_candidates(config_of(), column, {0, 1, 2, 5}) is None


def test_a_candidate_that_a_reward_fails_on_is_none_of_them():
    rewards = {
        "own": {"type": "function", "function": "smooth_rewards:brightness", "on_failure": "drop"}
    }
    failed = np.array([0.0, 1.0, 0.0, 0.0, 0.0, 0.0])
    column = column_of(0.5, 3.0, -1.0, 2.0, 0.0, 1.0, **{"own/failed": failed})
    assert chosen_candidates(config_of(rewards), column) == (2, 3, 5)


def test_rewards_of_other_scales_count_alike_where_advantages_are_mixed():
    """By their sum the large one alone would choose."""
    rewards = {"smooth_rewards:brightness": 1.0, "smooth_rewards:contrast": 1.0}
    small, large = np.array([3.0, -3.0, 0, 0, 0, 0]), np.array([0, 0, 0, 1000.0, 900.0, -500.0])
    parts = dict(zip((f"{name}/score" for name in rewards), (small, large), strict=True))
    column = column_of(*(small + large), **parts)
    assert chosen_candidates(config_of(rewards), column) == (3, 4, 5)
    mixed = config_of(rewards, mix="advantages")
    assert chosen_candidates(mixed, column) == (0, 1, 3)


def test_equal_rewards_are_chosen_by_their_place():
    assert chosen_candidates(config_of(), column_of(*[1.0] * 6)) == (0, 4, 5)


@pytest.mark.parametrize(
    ("screened", "rewards", "expected"),
    [
        ([1.0, 2.0, 3.0, 4.0], [10.0, 20.0, 30.0, 100.0], 1.0),
        ([1.0, 2.0, 3.0, 4.0], [4.0, 3.0, 2.0, 1.0], -1.0),
        ([1.0, 2.0, 3.0, 4.0], [1.0, 3.0, 2.0, 4.0], 0.8),  # 1 - 6 * 2 / (4 * 15)
        ([1.0, 1.0, 1.0, 1.0], [1.0, 2.0, 3.0, 4.0], None),
        ([1.0, 2.0, 3.0, 4.0], [0.0, 0.0, 0.0, 0.0], None),
    ],
)
def test_the_rank_correlation(screened, rewards, expected):
    found = rank_correlation(np.array(screened), np.array(rewards))
    assert found == (None if expected is None else pytest.approx(expected))
