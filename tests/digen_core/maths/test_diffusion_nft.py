"""DiffusionNFT: values by hand, the closed form of its gradient, its fixed point, its modes.

The recorded case of the published code is in test_oracles_extras.py.
"""

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given
from torch import Tensor

from digen_core.maths.diffusion_nft import nft_loss, optimality
from digen_core.maths.forward_process import noised, old_policy_decay

MODES = ["all", "positive_only", "negative_only", "one_only", "binary"]


def tensors(seed: int = 0) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(5, 3, 4, 2, generator=generator, dtype=torch.float64))


def test_by_hand():
    # x = 1.5, sigma = 0.5, x_0 = 1; v = 3, v_old = 1, beta = 0.5: v+ = 2, v- = 0
    # x_0+ = 0.5: error 0.5, weight 0.5, L+ = 0.5; x_0- = 1.5: L- = 0.5
    one = torch.ones(1, 1)
    got = nft_loss(
        3 * one, one, 2 * one, 1.5 * one, one, 0.5, torch.tensor([0.8]), beta=0.5,
        max_advantage=4.0, reference_coefficient=0.1,
    )  # fmt: skip
    assert got.policy.item() == pytest.approx((0.8 * 0.5 + 0.2 * 0.5) / 0.5)
    assert got.reference.item() == pytest.approx(1)
    assert got.distance.item() == pytest.approx(4)
    assert got.loss.item() == pytest.approx(4.0 * 1 + 0.1 * 1)


@pytest.mark.parametrize("beta", [0.1, 1.0])
def test_the_gradient_at_the_old_policy_has_a_closed_form(beta: float):
    # At v = v_old both branches coincide, e = x - sigma v - x_0, and
    # d loss / d v = max_advantage * (1 - 2r) * 2 * sigma * e / (w * D)
    v, noise, x_0, *_ = tensors()
    sigma = torch.tensor([0.9, 0.5, 0.1], dtype=torch.float64)
    x = noised(x_0, noise, sigma)
    share = torch.tensor([1.0, 0.5, 0.2], dtype=torch.float64)
    velocity = v.clone().requires_grad_()
    got = nft_loss(velocity, v, None, x, x_0, sigma, share, beta=beta)
    got.per_pair.sum().backward()

    level = sigma.reshape(3, 1, 1)
    error = x - level * v - x_0
    weight = error.abs().mean((1, 2), keepdim=True)
    expected = 5 * (1 - 2 * share.reshape(3, 1, 1)) * 2 * level * error / (weight * 8)
    assert velocity.grad is not None
    torch.testing.assert_close(velocity.grad, expected)
    assert got.distance.count_nonzero() == got.reference.count_nonzero() == 0


def test_good_samples_pull_towards_themselves_and_bad_ones_push_away():
    _, noise, x_0, old, *_ = tensors()
    sigma = torch.full((3,), 0.6, dtype=torch.float64)
    x = noised(x_0, noise, sigma)
    target = noise - x_0
    for share, sign in ((1.0, 1), (0.0, -1)):
        velocity = old.clone().requires_grad_()
        got = nft_loss(velocity, old, None, x, x_0, sigma, torch.full((3,), share), beta=1.0)
        got.loss.backward()
        assert velocity.grad is not None
        towards = (-velocity.grad * (target - old)).flatten(1).sum(1)
        assert (sign * towards > 0).all()


def test_the_true_velocity_of_an_optimal_sample_costs_nothing():
    _, noise, x_0, old, _ = tensors()
    sigma = torch.tensor([1.0, 0.5, 0.2], dtype=torch.float64)
    target = noise - x_0
    x = noised(x_0, noise, sigma)
    got = nft_loss(target, old, target, x, x_0, sigma, torch.ones(3), beta=1.0)
    assert got.loss.item() == pytest.approx(0, abs=1e-12)


def test_weights_carry_no_gradient_and_are_bounded():
    x_0 = torch.zeros(1, 4, dtype=torch.float64)
    velocity = torch.full((1, 4), 1e-7, dtype=torch.float64, requires_grad=True)
    got = nft_loss(
        velocity, torch.zeros_like(x_0), None, x_0, x_0, 1.0, torch.ones(1), beta=1.0,
        max_advantage=1.0,
    )  # fmt: skip
    got.loss.backward()
    assert got.loss.item() == pytest.approx(1e-14 / 1e-5)
    assert velocity.grad is not None
    torch.testing.assert_close(velocity.grad, torch.full_like(x_0, 2e-7 / 4 / 1e-5))


def test_half_precision_is_computed_in_float32():
    v, old, reference, x, x_0 = (value.bfloat16() for value in tensors())
    share, sigma = torch.tensor([0.3, 0.6, 1.0]), torch.tensor([0.2, 0.5, 0.9])
    got = nft_loss(v, old, reference, x, x_0, sigma, share, beta=0.1)
    exact = nft_loss(
        *(value.float() for value in (v, old, reference, x, x_0)), sigma, share, beta=0.1
    )
    assert got.loss.dtype == torch.float32
    assert torch.equal(got.loss, exact.loss)


# --- optimality


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("all", [0.0, 0.25, 0.5, 0.6, 1.0]),
        ("positive_only", [0.5, 0.5, 0.5, 0.6, 1.0]),
        ("negative_only", [0.0, 0.25, 0.5, 0.5, 0.5]),
        ("one_only", [0.5, 0.5, 0.5, 0.6, 0.6]),
        ("binary", [0.4, 0.4, 0.5, 0.6, 0.6]),
    ],
)
def test_optimality_by_hand(mode: str, expected: list[float]):
    got = optimality(torch.tensor([-7.0, -2.5, 0.0, 1.0, 9.0]), max_advantage=5.0, mode=mode)
    torch.testing.assert_close(got, torch.tensor(expected))


@given(
    st.lists(st.floats(-20, 20), min_size=2, max_size=8),
    st.floats(0.5, 10),
    st.sampled_from(MODES),
)
def test_optimality_is_a_probability_that_grows_with_the_advantage(
    values: list[float], max_advantage: float, mode: str
):
    advantages = torch.tensor(sorted(values))
    got = optimality(advantages, max_advantage=max_advantage, mode=mode)
    assert ((got >= 0) & (got <= 1)).all()
    assert (got.diff() >= 0).all()


# --- schedule of the old policy


@pytest.mark.parametrize(
    ("schedule", "num_updates", "expected"),
    [
        ("none", 1000, 0.0),
        ("ramp", 0, 0.0),
        ("ramp", 200, 0.2),
        ("ramp", 501, 0.5),
        ("late_ramp", 75, 0.0),
        ("late_ramp", 95, 0.15),
        ("late_ramp", 300, 0.999),
    ],
)
def test_decay_by_hand(schedule: str, num_updates: int, expected: float):
    assert old_policy_decay(num_updates, schedule) == pytest.approx(expected)


# --- refusals


def test_bad_input_is_refused():
    v, old, _, x, x_0 = tensors()
    with pytest.raises(ValueError, match="one shape"):
        nft_loss(v, old[:1], None, x, x_0, 0.5, torch.ones(3), beta=1.0)
    with pytest.raises(ValueError, match=r"optimality \[B\]"):
        nft_loss(v, old, None, x, x_0, 0.5, torch.ones(1), beta=1.0)
    with pytest.raises(ValueError, match=r"beta \(0\)"):
        nft_loss(v, old, None, x, x_0, 0.5, torch.ones(3), beta=0)
    with pytest.raises(ValueError, match="one per trajectory"):
        nft_loss(v, old, None, x, x_0, torch.ones(2), torch.ones(3), beta=1.0)
    with pytest.raises(ValueError, match="mode"):
        optimality(torch.zeros(1), mode="some")
    with pytest.raises(ValueError, match="schedule"):
        old_policy_decay(1, "slow")
