"""Advantages of several rewards, of a KL in the reward, and best-of-n: hand values, properties."""

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given
from torch import Tensor

from digen_core.maths.advantages import best_of_n, kl_reward_advantages, mixed_advantages
from digen_core.maths.grpo import clipped_surrogate, group_advantages

GROUPS = torch.tensor([4, 4, 9, 9])
# group 4: 0, 2 and 10, 30; group 9: 0, 6 and 5, 5
REWARDS = torch.tensor([[0.0, 2.0, 0.0, 6.0], [10.0, 30.0, 5.0, 5.0]])

reward = st.floats(-10, 10, width=32)


def float64(values: list[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_mixed_advantages_by_hand():
    weights = torch.tensor([2.0, -0.5])
    got = mixed_advantages(REWARDS, GROUPS, weights, mix="advantages", eps=0.0)
    # each reward's advantages are -1, 1 in each group, and 0 where it is flat
    torch.testing.assert_close(got, float64([-1.5, 1.5, -2, 2]))
    # 2 r_1 - r_2 / 2 = -5, -11 and -2.5, 9.5: the second reward decides in group 4
    got = mixed_advantages(REWARDS, GROUPS, weights, mix="rewards", eps=0.0)
    torch.testing.assert_close(got, float64([1, -1, -1, 1]))
    got = mixed_advantages(REWARDS, GROUPS, weights, mix="rewards", scale="max_group", eps=1.0)
    torch.testing.assert_close(got, float64([3 / 7, -3 / 7, -6 / 7, 6 / 7]))


@given(st.lists(reward, min_size=6, max_size=6), st.floats(0.01, 100), st.floats(-5, 5))
def test_mixing_by_advantages_does_not_see_the_scale_of_a_reward(
    values: list[float], factor: float, offset: float
):
    first, group_index = float64(values), torch.tensor([0, 0, 0, 1, 1, 1])
    second = float64([1, 2, 5, 3, 0, 1])

    def mixed(other: Tensor) -> Tensor:
        rewards, weights = torch.stack([first, other]), torch.tensor([0.3, 0.7])
        return mixed_advantages(rewards, group_index, weights, mix="advantages", eps=0)

    torch.testing.assert_close(mixed(second), mixed(factor * second + offset), rtol=1e-6, atol=1e-6)


@given(st.lists(reward, min_size=4, max_size=4), st.sampled_from(["rewards", "advantages"]))
def test_one_reward_is_not_mixed(values: list[float], mix: str):
    rewards = float64(values)
    settings = {"scale": "batch", "eps": 0.1, "ddof": 1, "trimmed_ratio": 0.25}
    got = mixed_advantages(rewards[None], GROUPS, torch.ones(1), mix=mix, **settings)
    torch.testing.assert_close(got, group_advantages(rewards, GROUPS, **settings))


def test_the_sum_of_two_losses_is_the_loss_of_mixed_advantages_inside_the_clip_range():
    weights = torch.tensor([0.4, 0.6])
    mixed = mixed_advantages(REWARDS, GROUPS, weights, mix="advantages", ddof=1, eps=1e-8)
    grads = []
    for losses in (
        lambda logprob: sum(
            weight
            * clipped_surrogate(
                logprob,
                torch.zeros(4),
                group_advantages(rewards, GROUPS, ddof=1, eps=1e-8),
                clip_range=0.2,
            ).loss
            for weight, rewards in zip(weights, REWARDS, strict=True)
        ),
        lambda logprob: clipped_surrogate(logprob, torch.zeros(4), mixed, clip_range=0.2).loss,
    ):
        logprob = torch.tensor([0.1, -0.1, 0.05, 0.0], requires_grad=True)
        losses(logprob).backward()
        assert logprob.grad is not None
        grads.append(logprob.grad)
    torch.testing.assert_close(grads[0], grads[1])


def test_kl_in_the_reward_by_hand():
    step_kl = torch.tensor([[0.0, 1.0], [0.0, 0.0], [2.0, 2.0], [2.0, 8.0]])
    got = kl_reward_advantages(REWARDS[0], step_kl, GROUPS, coefficient=0.5, scale="none", eps=0.0)
    # second step: -0.5, 2 and -1, 2
    torch.testing.assert_close(got, float64([-1, 1, -3, 3]).reshape(4, 1).repeat(1, 2) + float64(
        [[0, -0.25], [0, 0.25], [0, 1.5], [0, -1.5]]
    ))  # fmt: skip
    normalised = kl_reward_advantages(REWARDS[0], step_kl, GROUPS, coefficient=0.5, eps=0.0)
    torch.testing.assert_close(normalised, float64([-1, 1, -1, 1]).reshape(4, 1).repeat(1, 2))


@given(st.lists(reward, min_size=4, max_size=4), st.floats(0, 2))
def test_the_same_kl_for_all_changes_no_advantage(values: list[float], coefficient: float):
    rewards = float64(values)
    got = kl_reward_advantages(
        rewards, torch.full((4, 3), 0.25), GROUPS, coefficient=coefficient, scale="batch", eps=1.0
    )
    expected = group_advantages(rewards, GROUPS, scale="batch", eps=1.0)
    torch.testing.assert_close(got, expected[:, None].expand(4, 3), rtol=1e-9, atol=1e-9)


# --- best of n


@pytest.mark.parametrize(
    ("n", "expected"),
    [
        # group 4 holds 3, 1, 2 at 0, 2, 5; group 7 holds 0, 9, 5 at 1, 3, 4
        (1, [0, 3]),
        (2, [0, 1, 2, 3]),
        (3, [0, 1, 2, 3, 4, 5]),
    ],
)
def test_best_of_n_by_hand(n: int, expected: list[int]):
    scores = torch.tensor([3.0, 0.0, 1.0, 9.0, 5.0, 2.0])
    assert best_of_n(scores, torch.tensor([4, 7, 4, 7, 7, 4]), n).tolist() == expected


def test_odd_n_takes_one_more_of_the_best():
    scores = torch.arange(10.0)
    got = best_of_n(scores, torch.zeros(10, dtype=torch.long), 5)
    assert got.tolist() == [0, 1, 7, 8, 9]


@given(st.lists(reward, min_size=2, max_size=12), st.data())
def test_what_is_left_out_lies_between(values: list[float], data):
    n = data.draw(st.integers(2, len(values)))
    scores = torch.tensor(values)
    chosen = best_of_n(scores, torch.zeros(len(values), dtype=torch.long), n)
    assert len(set(chosen.tolist())) == n
    ranked = scores[chosen].sort().values
    left_out = scores[[i for i in range(len(values)) if i not in set(chosen.tolist())]]
    assert (left_out >= ranked[n // 2 - 1]).all()
    assert (left_out <= ranked[n // 2]).all()


# --- refusals


def test_bad_input_is_refused():
    with pytest.raises(ValueError, match=r"\[K, B\]"):
        mixed_advantages(REWARDS, GROUPS, torch.ones(3), mix="rewards")
    with pytest.raises(ValueError, match="'rewards' or 'advantages'"):
        mixed_advantages(REWARDS, GROUPS, torch.ones(2), mix="sum")
    with pytest.raises(ValueError, match=r"\[B, K\]"):
        kl_reward_advantages(REWARDS[0], torch.zeros(4), GROUPS, coefficient=1.0)
    with pytest.raises(ValueError, match="must be finite"):
        kl_reward_advantages(REWARDS[0], torch.full((4, 1), torch.nan), GROUPS, coefficient=1.0)
    with pytest.raises(ValueError, match="one shape"):
        best_of_n(torch.zeros(3), GROUPS, 1)
    with pytest.raises(ValueError, match="the 2 trajectories of group 4"):
        best_of_n(torch.zeros(4), GROUPS, 3)
    with pytest.raises(ValueError, match="between 1"):
        best_of_n(torch.zeros(4), GROUPS, 0)
