"""Flow-DPPO: torch.distributions for the divergence, the four cases of the mask, its gradient."""

import math

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given
from torch.distributions import Independent, Normal, kl_divergence

from digen_core.maths.flow_dppo import divergence_masked_surrogate
from digen_core.maths.grpo import clipped_surrogate
from digen_core.maths.kl import transition_kl

pairs_of = st.lists(
    st.tuples(st.floats(-1, 1), st.floats(0, 2), st.floats(-5, 5)), min_size=1, max_size=8
)


def masked(log_ratio, divergence, advantages, threshold=1.0):
    return divergence_masked_surrogate(
        log_ratio, torch.zeros_like(log_ratio), divergence, advantages, threshold=threshold
    )


def test_the_divergence_is_exact():
    torch.manual_seed(0)
    mean, behaviour = torch.randn(2, 3, 4, 5)
    std = torch.tensor([0.1, 0.5, 2.0]).reshape(3, 1, 1)
    exact = kl_divergence(
        Independent(Normal(behaviour, std.expand_as(mean)), 2),
        Independent(Normal(mean, std.expand_as(mean)), 2),
    )
    torch.testing.assert_close(transition_kl(mean, behaviour, std), exact / 20)


@pytest.mark.parametrize(
    ("log_ratio", "advantage", "is_blocked"),
    [
        (0.5, 1.0, True),  # good, and already more likely
        (0.5, -1.0, False),  # bad: comes back
        (-0.5, 1.0, False),  # good: comes back
        (-0.5, -1.0, True),  # bad, and already less likely
        (0.0, 1.0, False),
        (0.5, 0.0, False),
    ],
)
def test_only_steps_away_are_blocked(log_ratio: float, advantage: float, is_blocked: bool):
    for divergence, blocked in ((2.0, is_blocked), (1.0, False), (0.5, False)):
        ratio = torch.tensor([log_ratio], requires_grad=True)
        got = masked(ratio, torch.tensor([divergence]), torch.tensor([advantage]))
        got.loss.backward()
        expected = 0.0 if blocked else -advantage * math.exp(log_ratio)
        assert got.loss.item() == pytest.approx(expected)
        assert ratio.grad is not None
        assert ratio.grad.item() == pytest.approx(expected)
        assert got.clip_fraction.item() == blocked


@given(pairs_of, st.floats(0, 2))
def test_what_is_not_blocked_is_not_clipped(
    pairs: list[tuple[float, float, float]], threshold: float
):
    log_ratio, divergence, advantages = torch.tensor(pairs, dtype=torch.float64).T
    got = masked(log_ratio, divergence, advantages, threshold)
    plain = clipped_surrogate(log_ratio, torch.zeros(len(pairs)), advantages, clip_range=10.0)
    blocked = (divergence > threshold) & (log_ratio * advantages > 0)
    expected = torch.where(blocked, 0.0, plain.per_pair)
    torch.testing.assert_close(got.per_pair, expected)
    torch.testing.assert_close(got.loss, expected.mean())
    torch.testing.assert_close(got.approx_kl, plain.approx_kl)
    assert got.clip_fraction.item() == pytest.approx(blocked.double().mean().item())


def test_on_policy_it_is_the_policy_gradient():
    logprob = torch.tensor([-1.0, -2.0], requires_grad=True)
    behaviour = torch.tensor([-1.0, -2.0], requires_grad=True)
    divergence = torch.zeros(2, requires_grad=True)
    got = divergence_masked_surrogate(
        logprob, behaviour, divergence, torch.tensor([0.5, -1.5]), threshold=0.0
    )
    got.loss.backward()
    assert logprob.grad is not None
    assert logprob.grad.tolist() == [-0.25, 0.75]
    assert behaviour.grad is None
    assert divergence.grad is None


def test_shapes_that_would_broadcast_are_refused():
    with pytest.raises(ValueError, match="one shape"):
        masked(torch.zeros(4), torch.zeros(1), torch.zeros(4))
