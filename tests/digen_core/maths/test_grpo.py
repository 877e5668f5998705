"""Advantages and the clipped surrogate: scipy, closed forms, properties, hand values.

Recorded outputs of the published code are in test_oracles.py.
"""

import math

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given
from scipy.stats import zscore

from digen_core.maths.grpo import clipped_surrogate, group_advantages, zero_variance_groups

SCALES = ["group", "batch", "max_group", "none"]

reward = st.floats(-10, 10, width=32)
# (reward, group id) per trajectory, groups interleaved
labelled = st.lists(st.tuples(reward, st.integers(-2, 3)), min_size=1, max_size=24)
ratios = st.lists(st.tuples(st.floats(0.5, 2), st.floats(-5, 5)), min_size=1, max_size=8)


def tensors(pairs: list[tuple[float, int]]) -> tuple[torch.Tensor, torch.Tensor]:
    rewards, group_index = zip(*pairs, strict=True)
    return torch.tensor(rewards, dtype=torch.float64), torch.tensor(group_index)


# --- advantages


@pytest.mark.parametrize("ddof", [0, 1])
def test_advantages_of_a_group_are_z_scores(ddof: int):
    rewards = np.random.default_rng(0).normal(size=(3, 8))
    got = group_advantages(
        torch.as_tensor(rewards.T.flatten()), torch.arange(24) % 3, eps=0.0, ddof=ddof
    )
    expected = zscore(rewards, axis=1, ddof=ddof)
    np.testing.assert_allclose(got.reshape(8, 3).T, expected, rtol=1e-12)


@pytest.mark.parametrize(
    ("scale", "ddof", "eps", "expected"),
    [
        # groups {0, 2} and {10, 16}: means 1 and 13, population std 1 and 3
        ("group", 0, 0.0, [-1, -1, 1, 1]),
        ("group", 0, 1.0, [-1 / 2, -3 / 4, 1 / 2, 3 / 4]),
        ("group", 1, 0.0, [-(0.5**0.5), -(0.5**0.5), 0.5**0.5, 0.5**0.5]),
        # all: mean 7, squares 49 + 9 + 25 + 81 = 164
        ("batch", 0, 0.0, [-1 / 41**0.5, -3 / 41**0.5, 1 / 41**0.5, 3 / 41**0.5]),
        ("batch", 1, 1.0, [k / (1 + (164 / 3) ** 0.5) for k in (-1, -3, 1, 3)]),
        # the largest of 1 and 3
        ("max_group", 0, 0.0, [-1 / 3, -1, 1 / 3, 1]),
        ("max_group", 1, 1.0, [k / (1 + 18**0.5) for k in (-1, -3, 1, 3)]),
        ("none", 0, 1.0, [-1, -3, 1, 3]),
    ],
)
def test_advantages_by_hand(scale: str, ddof: int, eps: float, expected: list[float]):
    rewards = torch.tensor([0.0, 10.0, 2.0, 16.0])
    got = group_advantages(rewards, torch.tensor([7, -1, 7, -1]), scale=scale, ddof=ddof, eps=eps)
    assert got.dtype == torch.float64
    torch.testing.assert_close(got, torch.tensor(expected, dtype=torch.float64))


def test_the_defaults_are_those_of_flow_grpo():
    got = group_advantages(torch.tensor([0.0, 2.0]), torch.tensor([0, 0]))
    assert got.tolist() == pytest.approx([-1 / 1.0001, 1 / 1.0001], rel=1e-12)


@given(labelled, st.sampled_from(SCALES), st.floats(0, 1))
def test_every_group_sums_to_zero(pairs: list[tuple[float, int]], scale: str, eps: float):
    rewards, group_index = tensors(pairs)
    got = group_advantages(rewards, group_index, scale=scale, eps=eps)
    assert got.isfinite().all()
    for group_id in group_index.unique():
        members = got[group_index == group_id]
        # a spread of 1e-9 around 10 is 1e-7 known
        assert members.sum().item() == pytest.approx(0, abs=1e-6 * len(members))


@given(labelled, st.sampled_from(SCALES), st.randoms(use_true_random=False))
def test_advantages_follow_a_permutation(pairs: list[tuple[float, int]], scale: str, random):
    rewards, group_index = tensors(pairs)
    order = list(range(len(pairs)))
    random.shuffle(order)
    got = group_advantages(rewards[order], group_index[order], scale=scale)
    expected = group_advantages(rewards, group_index, scale=scale)[order]
    torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-9)


@given(labelled, st.sampled_from(["group", "none"]), st.integers(-2, 3))
def test_a_group_does_not_see_the_others(pairs: list[tuple[float, int]], scale: str, group_id: int):
    rewards, group_index = tensors(pairs)
    mine = group_index == group_id
    if not mine.any():
        return
    got = group_advantages(rewards[mine], group_index[mine], scale=scale)
    expected = group_advantages(rewards, group_index, scale=scale)[mine]
    torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-9)


@given(
    reward,
    st.integers(1, 12),
    st.sampled_from([torch.bfloat16, torch.float32, torch.float64]),
    st.sampled_from(SCALES),
    st.sampled_from([0.0, 1e-8, 1e-4]),
)
def test_equal_rewards_give_exactly_zero(
    value: float, group_size: int, dtype: torch.dtype, scale: str, eps: float
):
    rewards = torch.cat([torch.full((group_size,), value), torch.tensor([0.0, 1.0])]).to(dtype)
    group_index = torch.tensor([5] * group_size + [9, 9])
    got = group_advantages(rewards, group_index, scale=scale, eps=eps)
    assert got[:group_size].count_nonzero() == 0
    assert got[group_size:].count_nonzero() == 2
    assert zero_variance_groups(rewards, group_index) == [5]


def test_a_batch_of_equal_rewards_is_zero_without_eps():
    for scale in SCALES:
        got = group_advantages(torch.full((8,), 0.3), torch.arange(8) // 4, scale=scale, eps=0.0)
        assert got.count_nonzero() == 0


def test_trimmed_advantages_by_hand():
    # group 3 without its lowest, -6: mean 4, population std 2; group 8 loses int(2 * 0.25) = 0
    rewards = torch.tensor([2.0, 0.0, 6.0, -6.0, 4.0, 2.0])
    group_index = torch.tensor([3, 8, 3, 3, 3, 8])
    got = group_advantages(rewards, group_index, eps=0.0, trimmed_ratio=0.25)
    std = (8 / 3) ** 0.5
    expected = [-2 / std, -1, 2 / std, -10 / std, 0, 1]
    torch.testing.assert_close(got, torch.tensor(expected, dtype=torch.float64))
    # of 2, 4, 6, 0, 2: mean 2.8, squares 0.64 + 1.44 + 10.24 + 7.84 + 0.64
    got = group_advantages(rewards, group_index, scale="batch", eps=0.0, trimmed_ratio=0.25)
    assert got[0].item() == pytest.approx(-2 / (20.8 / 5) ** 0.5)


@given(labelled, st.floats(0, 0.99), st.sampled_from(SCALES), st.floats(0.01, 1))
def test_trimmed_advantages_use_the_statistics_of_the_rest(
    pairs: list[tuple[float, int]], ratio: float, scale: str, eps: float
):
    rewards, group_index = tensors(pairs)
    got = group_advantages(rewards, group_index, scale=scale, eps=eps, trimmed_ratio=ratio)
    kept = {
        i: np.sort(rewards[group_index == i].numpy())[int((group_index == i).sum() * ratio) :]
        for i in group_index.unique().tolist()
    }
    flat = set(zero_variance_groups(rewards, group_index, trimmed_ratio=ratio))
    assert flat == {
        i for i, values in kept.items() if np.ptp(values) <= 1e-9 * np.maximum(1, abs(values).max())
    }
    for reward_, group, advantage in zip(rewards, group_index.tolist(), got, strict=True):
        std = {
            "group": kept[group].std(),
            "batch": np.concatenate(list(kept.values())).std(),
            "max_group": max(values.std() for values in kept.values()),
            "none": 1 - eps,
        }[scale]
        expected = 0 if group in flat else (reward_ - kept[group].mean()) / (std + eps)
        assert advantage.item() == pytest.approx(float(expected), rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("ratio", [-0.1, 1.0, math.nan])
def test_no_group_can_be_trimmed_to_nothing(ratio: float):
    with pytest.raises(ValueError, match="trimmed_ratio"):
        group_advantages(torch.tensor([1.0, 2.0]), torch.tensor([0, 0]), trimmed_ratio=ratio)


def test_zero_variance_groups_by_hand():
    rewards = torch.tensor([1.0, 1.0, 0.0, 1e-10, 1e6, 1e6 + 1e-4, 0.0, 1e-8], dtype=torch.float64)
    group_index = torch.tensor([4, 4, 2, 2, 8, 8, 1, 1])
    # spreads: 0, 1e-10, 1e-4 (relative 1e-10), 1e-8
    assert zero_variance_groups(rewards, group_index) == [2, 4, 8]
    # minus a million is as large as a million
    assert zero_variance_groups(-rewards, group_index) == [2, 4, 8]


def test_flat_groups_are_zero_in_the_scale_of_the_batch_too():
    rewards = torch.tensor([0.0, 1e-10, 0.0, 1.0], dtype=torch.float64)
    got = group_advantages(rewards, torch.tensor([0, 0, 1, 1]), scale="batch")
    assert got[:2].tolist() == [0.0, 0.0]


@pytest.mark.parametrize(
    ("rewards", "group_index", "settings", "message"),
    [
        pytest.param([1.0, math.nan], [0, 3], {}, "reward 1 of group 3 is nan", id="nan"),
        pytest.param([math.inf, 1.0], [2, 0], {}, "reward 0 of group 2 is inf", id="inf"),
        pytest.param([1.0, 2.0], [0], {}, "one shape", id="shapes"),
        pytest.param([[1.0, 2.0]], [[0, 0]], {}, "one shape", id="two axes"),
        pytest.param([], [], {}, "B > 0", id="empty"),
        pytest.param([1.0, 2.0], [0.0, 0.0], {}, "integer", id="float ids"),
        pytest.param([1.0, 2.0, 3.0], [0, 0, 6], {"ddof": 1}, "group 6 has 1 rew", id="ddof"),
        pytest.param(
            [1.0, 2.0], [4, 4], {"ddof": 1, "trimmed_ratio": 0.5}, "group 4 has 1 rew", id="trimmed"
        ),
        pytest.param([1.0], [0], {"ddof": 1, "scale": "batch"}, "ddof", id="ddof of batch"),
        pytest.param([1.0, 2.0], [0, 0], {"scale": "std"}, "scale", id="scale"),
    ],
)
def test_bad_rewards_are_refused(rewards, group_index, settings, message: str):
    index = torch.tensor(group_index, dtype=None if group_index else torch.long)
    with pytest.raises(ValueError, match=message):
        group_advantages(torch.tensor(rewards), index, **settings)


# --- surrogate


@pytest.mark.parametrize(
    ("ratio", "advantage", "expected"),
    [
        (1.5, 1.0, -1.2),  # too likely and good: gain is capped
        (1.5, -1.0, 1.5),  # too likely and bad: full penalty
        (0.5, 1.0, -0.5),  # too rare and good: full (small) gain
        (0.5, -1.0, 0.8),  # too rare and bad: penalty is capped
    ],
)
def test_clipping_is_pessimistic(ratio: float, advantage: float, expected: float):
    got = clipped_surrogate(
        torch.tensor([ratio]).log(), torch.zeros(1), torch.tensor([advantage]), clip_range=0.2
    )
    torch.testing.assert_close(got.loss, torch.tensor(expected))
    torch.testing.assert_close(got.ratio, torch.tensor([ratio]))
    assert got.clip_fraction == 1


@given(ratios, st.floats(1e-5, 0.5))
def test_surrogate_bounds_the_unclipped_one(pairs: list[tuple[float, float]], clip_range: float):
    ratio, advantage = torch.tensor(pairs, dtype=torch.float64).T
    got = clipped_surrogate(ratio.log(), torch.zeros_like(ratio), advantage, clip_range=clip_range)
    assert (got.per_pair >= -advantage * ratio - 1e-9).all()
    assert got.loss.item() == pytest.approx(got.per_pair.mean().item())
    inside = (ratio - 1).abs() < clip_range - 1e-9
    outside = (ratio - 1).abs() > clip_range + 1e-9
    torch.testing.assert_close(got.per_pair[inside], (-advantage * ratio)[inside])
    share = got.clip_fraction.item() * len(pairs)
    assert outside.sum().item() - 1e-6 <= share <= (~inside).sum().item() + 1e-6


def test_on_policy_gradient_is_reinforce():
    logprob = torch.tensor([-1.0, -2.0], requires_grad=True)
    advantages = torch.tensor([0.5, -1.5], dtype=torch.float64)  # as group_advantages returns them
    got = clipped_surrogate(logprob, logprob, advantages, clip_range=0.2)
    got.loss.backward()
    assert logprob.grad is not None
    torch.testing.assert_close(logprob.grad, -advantages.float() / 2)
    assert got.clip_fraction == got.approx_kl == 0
    assert got.ratio.tolist() == [1, 1]


def test_gradient_vanishes_where_the_clip_binds():
    log_ratio = torch.tensor([0.4, 0.4, -0.4, -0.4], dtype=torch.float64, requires_grad=True)
    advantages = torch.tensor([1.0, -1.0, 1.0, -1.0], dtype=torch.float64)
    got = clipped_surrogate(log_ratio, torch.zeros(4), advantages, clip_range=0.2)
    got.per_pair.sum().backward()
    up, down = math.exp(0.4), math.exp(-0.4)
    assert log_ratio.grad is not None
    assert log_ratio.grad.tolist() == pytest.approx([0, up, -down, 0])


def test_only_loss_and_its_terms_carry_gradient():
    logprob = torch.zeros(2, requires_grad=True)
    behaviour = torch.zeros(2, requires_grad=True)
    got = clipped_surrogate(logprob, behaviour, torch.ones(2), clip_range=0.2)
    assert got.loss.requires_grad
    assert got.per_pair.requires_grad
    assert not any(value.requires_grad for value in (got.ratio, got.clip_fraction, got.approx_kl))
    got.loss.backward()
    assert behaviour.grad is None


def test_approx_kl_survives_tiny_ratios():
    # exp(l) - 1 - l = l^2 / 2 + l^3 / 6 is 5e-9 here, less than float32's rounding of a ratio of 1
    log_ratio = torch.tensor([1e-4, -1e-4])
    got = clipped_surrogate(log_ratio, torch.zeros(2), torch.ones(2), clip_range=0.2)
    assert got.approx_kl.item() == pytest.approx(5e-9, rel=1e-4)
    got = clipped_surrogate(torch.tensor([2.0]).log(), torch.zeros(1), torch.ones(1), clip_range=1)
    assert got.approx_kl.item() == pytest.approx(1 - math.log(2), rel=1e-6)


def test_half_precision_logprobs_are_subtracted_in_float32():
    got = clipped_surrogate(
        torch.tensor([1.0], dtype=torch.bfloat16),
        torch.tensor([0.99]),
        torch.tensor([1.0]),
        clip_range=0.2,
    )
    assert got.loss.dtype == torch.float32
    assert got.ratio.item() == pytest.approx(math.exp(0.01), rel=1e-6)


def test_shapes_that_would_broadcast_are_refused():
    with pytest.raises(ValueError, match="one shape"):
        clipped_surrogate(torch.zeros(4), torch.zeros(4), torch.zeros(4, 1), clip_range=0.2)
