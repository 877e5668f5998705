"""Corrections of stale or mismatched trajectories: hand values, properties, an unbiased mean."""

import math

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given
from torch.distributions import Normal

from digen_core.algorithms.correction import correction_weights

MODES = ["truncate", "icepop", "reject"]
LOG_RATIOS = torch.tensor([[0.25, 0.5], [1.0, 1.5], [2.0, 4.0]]).log()

matrices = st.lists(st.lists(st.floats(-4, 4), min_size=3, max_size=3), min_size=1, max_size=5)


def weights(log_ratio: torch.Tensor, **settings) -> torch.Tensor:
    """Return weights of a log-ratio that is the difference of two log-probs."""
    return correction_weights(log_ratio - 1.5, torch.full_like(log_ratio, -1.5), **settings)


@pytest.mark.parametrize(
    ("mode", "level", "expected"),
    [
        ("truncate", "step", [[0.25, 0.5], [1, 1.5], [2, 2]]),
        ("icepop", "step", [[0, 0.5], [1, 1.5], [2, 0]]),
        ("reject", "step", [[0, 1], [1, 1], [1, 0]]),
        # products 1/8, 3/2, 8
        ("truncate", "trajectory", [[0.125] * 2, [1.5] * 2, [2, 2]]),
        ("icepop", "trajectory", [[0, 0], [1.5] * 2, [0, 0]]),
        ("reject", "trajectory", [[0, 0], [1, 1], [0, 0]]),
    ],
)
def test_by_hand(mode: str, level: str, expected: list[list[float]]):
    # just inside the bounds, as exp(log(x)) is rounded
    got = weights(LOG_RATIOS, mode=mode, low=0.4999, high=2.0001, level=level)
    torch.testing.assert_close(got, torch.tensor(expected).float(), rtol=1e-4, atol=1e-6)


@given(matrices, st.floats(0, 0.9), st.floats(1.1, 5), st.sampled_from(["step", "trajectory"]))
def test_relations_of_the_modes(rows: list[list[float]], low: float, high: float, level: str):
    log_ratio = torch.tensor(rows, dtype=torch.float64)
    truncated, icepop, rejected = (
        weights(log_ratio, mode=mode, low=low, high=high, level=level) for mode in MODES
    )
    assert truncated.shape == log_ratio.shape
    assert ((truncated > 0) & (truncated <= high)).all()
    torch.testing.assert_close(icepop, truncated * rejected)
    assert set(rejected.flatten().tolist()) <= {0.0, 1.0}
    if level == "trajectory":
        assert all((kind == kind[:, :1]).all() for kind in (truncated, icepop, rejected))


@pytest.mark.parametrize("mode", MODES)
def test_fresh_trajectories_are_not_touched(mode: str):
    logprob = torch.randn(4, 3)
    got = correction_weights(logprob, logprob, mode=mode, low=0.5, high=2.0, level="trajectory")
    assert torch.equal(got, torch.ones(4, 3))


@pytest.mark.parametrize("level", ["step", "trajectory"])
def test_ratios_within_the_bounds_make_means_unbiased(level: str):
    # E_behaviour[w * f(x)] = E_proximal[f(x)]; f = x_0 of the first of two steps
    torch.manual_seed(0)
    behaviour, proximal = Normal(0.0, 1.0), Normal(0.3, 1.0)
    x = behaviour.sample((200_000, 2))
    got = correction_weights(
        proximal.log_prob(x), behaviour.log_prob(x), mode="truncate", high=1e6, level=level
    )
    assert got.mean().item() == pytest.approx(1, abs=0.01)
    assert (got * x)[:, 0].mean().item() == pytest.approx(0.3, abs=0.015)


def test_huge_ratios_stay_finite():
    far = torch.full((1, 2), 500.0)
    for mode, expected in (("truncate", 2.0), ("icepop", 0.0), ("reject", 0.0)):
        got = weights(far, mode=mode, high=2.0)
        assert got.tolist() == [[expected, expected]]


def test_weights_carry_no_gradient():
    logprob = torch.zeros(2, 2, requires_grad=True)
    for mode in MODES:
        got = correction_weights(logprob, torch.zeros(2, 2), mode=mode, low=0.5, high=2.0)
        assert not got.requires_grad


def test_bad_input_is_refused():
    zeros = torch.zeros(2, 3)
    for bad in (math.nan, math.inf):
        with pytest.raises(ValueError, match="not finite"):
            weights(torch.full((1, 1), bad), mode="truncate", high=2.0)
    with pytest.raises(ValueError, match=r"one shape \[B, K\]"):
        correction_weights(zeros, zeros[:1], mode="truncate", high=2.0)
    with pytest.raises(ValueError, match="low < high"):
        weights(zeros, mode="truncate", low=2.0, high=2.0)
    with pytest.raises(ValueError, match="mode"):
        weights(zeros, mode="clip", high=2.0)
    with pytest.raises(ValueError, match="level"):
        weights(zeros, mode="reject", high=2.0, level="token")
