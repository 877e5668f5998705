"""Corrections of stale or mismatched trajectories: hand values, properties, an unbiased mean."""

import math

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given
from torch.distributions import Normal

from digen_core.maths.correction import correction_weights

MODES = ["recompute", "truncate", "icepop", "reject"]
LOG_RATIOS = torch.tensor([0.25, 0.5, 1.0, 1.5, 2.0, 4.0]).log()

ratios = st.lists(st.floats(-4, 4), min_size=1, max_size=9)


def weights(log_ratio: torch.Tensor, **settings) -> torch.Tensor:
    """Return weights of a log-ratio that is the difference of two log-probs."""
    return correction_weights(log_ratio - 1.5, torch.full_like(log_ratio, -1.5), **settings)


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("recompute", [1, 1, 1, 1, 1, 1]),
        ("truncate", [0.25, 0.5, 1, 1.5, 2, 2]),
        ("icepop", [0, 0.5, 1, 1.5, 2, 0]),
        ("reject", [0, 1, 1, 1, 1, 0]),
    ],
)
def test_by_hand(mode: str, expected: list[float]):
    # just inside the bounds, as exp(log(x)) is rounded
    got = weights(LOG_RATIOS, mode=mode, low=0.4999, high=2.0001)
    torch.testing.assert_close(got, torch.tensor(expected).float(), rtol=1e-4, atol=1e-6)


@given(ratios, st.floats(0, 0.9), st.floats(1.1, 5))
def test_relations_of_the_modes(values: list[float], low: float, high: float):
    log_ratio = torch.tensor(values, dtype=torch.float64)
    recomputed, truncated, icepop, rejected = (
        weights(log_ratio, mode=mode, low=low, high=high) for mode in MODES
    )
    assert (recomputed == 1).all()
    assert ((truncated > 0) & (truncated <= high)).all()
    torch.testing.assert_close(icepop, truncated * rejected)
    assert set(rejected.tolist()) <= {0.0, 1.0}


@pytest.mark.parametrize("mode", MODES)
def test_fresh_trajectories_are_not_touched(mode: str):
    logprob = torch.randn(12)
    got = correction_weights(logprob, logprob, mode=mode, low=0.5, high=2.0)
    assert torch.equal(got, torch.ones(12))


def test_ratios_within_the_bounds_make_means_unbiased():
    # E_behaviour[w * x] = E_proximal[x]
    torch.manual_seed(0)
    behaviour, proximal = Normal(0.0, 1.0), Normal(0.3, 1.0)
    x = behaviour.sample((200_000,))
    got = correction_weights(proximal.log_prob(x), behaviour.log_prob(x), mode="truncate", high=1e6)
    assert got.mean().item() == pytest.approx(1, abs=0.01)
    assert (got * x).mean().item() == pytest.approx(0.3, abs=0.015)


def test_huge_ratios_stay_finite():
    far = torch.full((2,), 500.0)
    for mode, expected in zip(MODES, (1.0, 2.0, 0.0, 0.0), strict=True):
        assert weights(far, mode=mode, high=2.0).tolist() == [expected, expected]


def test_weights_carry_no_gradient():
    logprob = torch.zeros(2, requires_grad=True)
    for mode in MODES:
        got = correction_weights(logprob, torch.zeros(2), mode=mode, low=0.5, high=2.0)
        assert not got.requires_grad


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_log_ratio_that_is_no_number_makes_its_factor_none(mode, bad):
    got = weights(torch.tensor([0.0, bad]), mode=mode, low=0.5, high=2.0)
    assert got[0] == 1
    assert got[1].isnan()


def test_bad_input_is_refused():
    zeros = torch.zeros(2)
    with pytest.raises(ValueError, match=r"one shape \[B\]"):
        correction_weights(zeros, zeros[:1], mode="truncate", high=2.0)
    with pytest.raises(ValueError, match="low < high"):
        weights(zeros, mode="truncate", low=2.0, high=2.0)
    with pytest.raises(ValueError, match="mode"):
        weights(zeros, mode="clip", high=2.0)
