"""Advantages, from rewards as receipts bring them."""

import numpy as np
import pytest

from digen_core.config.run import RunConfig
from digen_core.training.advantages import advantages_of


def config(**algorithm):
    rollout = {"group_size": 4, "fragment_size": 2}
    return RunConfig.model_validate({"rollout": rollout, "algorithm": algorithm})


def found_of(rewards, prompts=None, history=None, components=None, **algorithm):
    columns = {
        group: {"reward": values, **(components or {}).get(group, {})}
        for group, values in rewards.items()
    }
    prompts = prompts or {group: f"prompt {group}" for group in rewards}
    return advantages_of(config(**algorithm), columns, prompts, history or {})


def test_groups_by_hand():
    found = found_of({3: [0.0, 0.0, 1.0, 1.0], 5: [0.3] * 4})
    # Mean 0.5, standard deviation 0.5.
    assert found.values[3] == pytest.approx([-1, -1, 1, 1], rel=1e-3)
    assert found.values[5] == pytest.approx([0.0] * 4)
    assert found.skipped == (5,)
    assert found.chosen == {}
    assert all(values.dtype == np.float64 for values in found.values.values())


@pytest.mark.parametrize("scale", ["batch", "max_group"])
def test_the_scale_may_be_that_of_the_batch(scale):
    rewards = {0: [0.0, 0.0, 1.0, 1.0], 1: [0.0, 0.0, 4.0, 4.0]}
    found = found_of(rewards, advantage_scale=scale).values
    assert found[1][3] == pytest.approx(4 * found[0][3])


def test_trimmed_rewards_are_measured_by_the_others():
    rewards = {0: [0.0, 1.0, 1.0, 3.0], 1: [-9.0, 2.0, 2.0, 2.0]}
    found = found_of(rewards, trimmed_ratio=0.25)
    # Of 1, 1, 3 the mean is 5/3 and the standard deviation sqrt(8) / 3; of 2, 2, 2 it is 0.
    expected = (np.array(rewards[0]) - 5 / 3) * 3 / 8**0.5
    assert found.values[0] == pytest.approx(expected, rel=1e-3)
    assert found.skipped == (1,)
    kl = {group: np.zeros((4, 2)) for group in rewards}
    columns = {group: {"reward": values} for group, values in rewards.items()}
    settings = config(trimmed_ratio=0.25, kl_reward=5.0)
    by_step = advantages_of(settings, columns, {0: "x", 1: "y"}, {}, kl)
    assert by_step.values[0] == pytest.approx(np.stack([expected] * 2, axis=1), rel=1e-3)
    assert by_step.skipped == (1,)


def test_best_of_two_are_the_best_and_the_worst_of_each_group():
    found = found_of({0: [0.2, 0.9, 0.0, 0.5], 2: [1.0, 3.0, 2.0, 2.0]}, best_of=2)
    assert found.chosen == {0: (1, 2), 2: (0, 1)}
    assert found_of({0: [0.2, 0.9, 0.0, 0.5]}, best_of=3).chosen == {0: (1, 2, 3)}


def test_mixed_advantages_do_not_see_the_scale_of_a_reward():
    parts = {"t:a/score": [0.0, 0.0, 1.0, 1.0], "t:b/score": [0.0, 100.0, 0.0, 100.0]}
    total = [a + b for a, b in zip(*parts.values(), strict=True)]
    tree = {"rewards": {"t:a": 1.0, "t:b": 1.0}, "rollout": {"group_size": 4, "fragment_size": 2}}
    run = RunConfig.model_validate({**tree, "algorithm": {"mix": "advantages"}})
    found = advantages_of(run, {0: {"reward": total, **parts}}, {0: "x"}, {})
    assert found.values[0] == pytest.approx([-2, 0, 0, 2], abs=1e-3)


def watching(algorithm, **watched):
    """Return a config with a reward that weighs 0."""
    rewards = {"t:a": 1.0, "t:watched": {"weight": 0.0, **watched}}
    rollout = {"group_size": 2, "fragment_size": 2}
    tree = {"rewards": rewards, "rollout": rollout, "algorithm": algorithm}
    return RunConfig.model_validate({**tree, "schedule": {"layout": "colocated"}})


@pytest.mark.parametrize("mix", ["rewards", "advantages"])
def test_a_group_without_signal_is_skipped_whatever_a_reward_says_that_weighs_nothing(mix):
    equal, other = {"t:a/score": [1.0, 1.0]}, {"t:watched/score": [0.0, 1.0]}
    columns = {0: {"reward": [1.0, 1.0], **equal, **other}}
    found = advantages_of(watching({"mix": mix}), columns, {0: "x"}, {})
    assert found.skipped == (0,)


def test_a_reward_that_weighs_nothing_may_fail_without_moving_advantages():
    run = watching({"advantage_scale": "batch"}, on_failure="neutral")

    def found(failed):
        marks = {0: [0.0, 0.0], 1: [failed, failed]}
        scores = {0: [0.0, 1.0], 1: [0.0, 10.0]}
        columns = {
            group: {
                "reward": scores[group],
                "t:a/score": scores[group],
                "t:watched/score": [0.0, 0.0],
                "t:watched/failed": marks[group],
            }
            for group in scores
        }
        return advantages_of(run, columns, {0: "x", 1: "y"}, {}).values

    for group in (0, 1):
        assert found(1.0)[group] == pytest.approx(found(0.0)[group])


def test_advantages_are_clamped_one_reward_at_a_time():
    parts = {"t:a/score": [0.0, 0.0, 0.0, 1.0], "t:b/score": [0.0, 0.0, 0.0, 9.0]}
    total = [a + b for a, b in zip(*parts.values(), strict=True)]
    tree = {"rewards": {"t:a": 1.0, "t:b": 1.0}, "rollout": {"group_size": 4, "fragment_size": 2}}
    columns, found = {0: {"reward": total, **parts}}, {}
    for mix in ("rewards", "advantages"):
        algorithm = {"mix": mix, "max_advantage": 1.5}
        run = RunConfig.model_validate({**tree, "algorithm": algorithm})
        found[mix] = advantages_of(run, columns, {0: "x"}, {}).values[0]
    # One that stands out among four has 3 / sqrt(3), the others -1 / sqrt(3).
    assert found["rewards"] == pytest.approx([-(3**-0.5)] * 3 + [1.5], rel=1e-3)
    assert found["advantages"] == pytest.approx([-2 * 3**-0.5] * 3 + [3.0], rel=1e-3)
    kl = {0: np.zeros((4, 1))}
    run = RunConfig.model_validate({**tree, "algorithm": {"kl_reward": 1.0, "max_advantage": 1.5}})
    assert advantages_of(run, columns, {0: "x"}, {}, kl).values[0].max() == 1.5
    found = found_of({0: [0.0, 0.0, 0.0, 1.0]}, type="ddpo", max_advantage=1.5)
    assert found.values[0].max() == 1.5


@pytest.mark.parametrize("mix", ["rewards", "advantages"])
def test_groups_that_could_not_be_scored_do_not_change_the_others(mix):
    scored = {0: [25.6, 25.7, 25.8, 25.9], 1: [25.0, 25.0, 26.0, 26.0]}
    tree = {"rewards": {"t:a": {"weight": 1.0, "on_failure": "neutral"}}}
    algorithm = {"mix": mix, "advantage_scale": "batch"}
    run = RunConfig.model_validate(
        {**tree, "algorithm": algorithm, "rollout": {"group_size": 4, "fragment_size": 2}}
    )

    def column(values, failed):
        return {"reward": values, "t:a/score": values, "t:a/failed": [float(failed)] * 4}

    columns = {group: column(values, failed=False) for group, values in scored.items()}
    prompts = {group: "x" for group in range(3)}
    alone = advantages_of(run, columns, prompts, {})
    columns[2] = column([0.0] * 4, failed=True)
    found = advantages_of(run, columns, prompts, {})
    assert found.skipped == (2,)
    for group in scored:
        np.testing.assert_array_equal(found.values[group], alone.values[group])
    nothing = advantages_of(run, {2: columns[2]}, prompts, {})
    assert nothing.skipped == (2,)
    assert not nothing.values[2].any()


def test_a_kl_in_the_reward_makes_an_advantage_for_each_step():
    kl = np.array([[0.0, 0.2], [0.0, 0.0], [0.0, 0.2], [0.0, 0.0]])
    columns = {0: {"reward": [0.0, 0.0, 1.0, 1.0]}, 1: {"reward": [0.5] * 4}}
    found = advantages_of(
        config(kl_reward=5.0), columns, {0: "x", 1: "y"}, {}, {0: kl, 1: 0.1 + 0 * kl}
    )
    # Step 0: the rewards; step 1: -1, 0, 0, 1, whose mean is 0 and deviation sqrt(1/2).
    expected = np.array([[-1, -(2**0.5)], [-1, 0], [1, 0], [1, 2**0.5]])
    assert found.values[0] == pytest.approx(expected, rel=1e-3)
    assert found.skipped == (1,)
    # Equal rewards still carry a signal where one sample is further from the base model.
    flat = {0: {"reward": [0.5] * 4}}
    found = advantages_of(config(kl_reward=5.0, best_of=2), flat, {0: "x"}, {}, {0: kl})
    assert found.skipped == ()
    assert found.values[0][:, 0] == pytest.approx([0.0] * 4)
    assert found.values[0][:, 1] == pytest.approx([-1, 1, -1, 1], rel=1e-3)
    assert found.chosen == {0: (0, 3)}


@pytest.mark.parametrize("scale", ["group", "none"])
def test_groups_of_several_numbers_of_trained_steps_are_each_by_themselves(scale):
    rewards = {0: [0.0, 1.0, 1.0, 3.0], 1: [2.0] * 4, 4: [0.5, 0.1, 0.2, 0.9]}
    columns = {group: {"reward": values} for group, values in rewards.items()}
    kl = {0: np.full((4, 3), 0.1), 1: np.zeros((4, 1)), 4: np.eye(4)[:, :1]}
    settings = config(kl_reward=0.1, advantage_scale=scale, best_of=2)
    prompts = dict.fromkeys(rewards, "a")
    found = advantages_of(settings, columns, prompts, {}, kl)
    assert [values.shape for _, values in sorted(found.values.items())] == [(4, 3), (4, 1), (4, 1)]
    for group, column in columns.items():
        alone = advantages_of(settings, {group: column}, prompts, {}, {group: kl[group]})
        assert np.array_equal(found.values[group], alone.values[group])
        assert found.chosen[group] == alone.chosen[group]
    assert found.skipped == (1,)
    if scale == "none":  # 0.5 - 0.1 is 0.4, in the mean of 0.4, 0.1, 0.2, 0.9
        assert found.values[4][:, 0] == pytest.approx([0.0, -0.3, -0.2, 0.5], abs=1e-12)


def test_ddpo_remembers_a_prompts_rewards():
    settings = {"type": "ddpo", "buffer_size": 8, "min_count": 4}
    first = found_of({0: [0.0, 0.0, 1.0, 1.0]}, {0: "cat"}, **settings)
    assert first.history == {"cat": (0.0, 0.0, 1.0, 1.0)}
    second = found_of({0: [1.0] * 4}, {0: "cat"}, first.history, **settings)
    # Of the eight rewards the mean is 0.75 and the standard deviation sqrt(3) / 4.
    assert second.values[0] == pytest.approx([0.25 / (3**0.5 / 4)] * 4, rel=1e-4)
    assert second.skipped == ()


# --- groups that lack a number ----------------------------------------------------------------


def dropped_of(rewards, failed=(), nonfinite=(), history=None, **algorithm):
    """Advantages of groups, with a failure in some, and NaN in others that have no rewards."""
    settings = {"rollout": {"group_size": 4, "fragment_size": 2}, "algorithm": algorithm}
    reward = {"type": "function", "function": "tests:judge", "on_failure": "drop"}
    config = RunConfig.model_validate({**settings, "rewards": {"judge": reward}})
    columns = {
        group: {
            "reward": values,
            "judge/score": values,
            "judge/failed": [0.0, float(group in failed), 0.0, 0.0],
        }
        for group, values in rewards.items()
    }
    prompts = {group: f"prompt {group}" for group in (*rewards, *nonfinite)}
    return advantages_of(config, columns, prompts, history or {}, nonfinite=nonfinite)


REWARDS = {0: [0.0, 0.0, 1.0, 1.0], 1: [9.0, 0.0, 0.0, -9.0], 2: [0.0, 1.0, 2.0, 3.0]}


@pytest.mark.parametrize("scale", ["group", "batch", "max_group"])
def test_a_group_that_lacks_a_number_moves_no_other(scale):
    found = dropped_of(REWARDS, failed=[1], nonfinite=[3], advantage_scale=scale)
    expected = found_of({0: REWARDS[0], 2: REWARDS[2]}, advantage_scale=scale)
    assert found.skipped == (1, 3)
    assert found.dropped == {1, 3}
    for group in (0, 2):
        assert found.values[group] == pytest.approx(expected.values[group], rel=1e-12)
    assert found.values[1].tolist() == found.values[3].tolist() == [0.0] * 4


def test_of_the_best_of_a_dropped_group_none_is_chosen():
    found = dropped_of(REWARDS, failed=[1], best_of=2)
    assert found.chosen.keys() == {0, 2}


def test_nothing_is_remembered_of_a_dropped_group():
    found = dropped_of(REWARDS, failed=[1], nonfinite=[3], type="ddpo", min_count=1)
    assert found.history.keys() == {"prompt 0", "prompt 2"}


def test_where_all_groups_lack_a_number_there_is_nothing_to_learn():
    before = {"prompt 0": (1.0,)}
    found = dropped_of({0: REWARDS[0]}, failed=[0], nonfinite=[4], history=before)
    assert found.skipped == (0, 4)
    assert found.history == before
