"""KL of two transitions: torch.distributions, the paper's closed form, properties, hand values.

Recorded outputs of the published code are in test_oracles.py.
"""

import math

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given
from torch.distributions import Normal, kl_divergence

from digen_core.maths.flow_sde import flow_sde_transition, transition_logprob
from digen_core.maths.kl import flowgrpo_kl, transition_kl

SHAPES = [(3, 5), (3, 6, 8), (3, 4, 8, 8), (3, 2, 3, 4, 5)]


def means(*shape: int, dtype: torch.dtype = torch.float64) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    mean, reference = torch.randn(2, *shape, generator=generator, dtype=torch.float64).to(dtype)
    return mean, reference


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_it_is_the_mean_divergence_of_two_normals(shape: tuple[int, ...]):
    mean, reference = means(*shape)
    std = torch.tensor([0.1, 0.5, 2.0], dtype=torch.float64).view(3, *[1] * (len(shape) - 1))
    expected = kl_divergence(Normal(mean, std), Normal(reference, std)).flatten(1).mean(1)
    torch.testing.assert_close(transition_kl(mean, reference, std), expected)


@given(st.floats(0.1, 0.9), st.floats(0.1, 1.0), st.floats(0.1, 1.5), st.floats(-2, 2))
def test_of_flow_sde_it_is_the_closed_form_of_the_paper(
    sigma: float, share: float, noise_level: float, difference: float
):
    # Flow-GRPO: h / 2 * (g (1 - sigma) / (2 sigma) + 1 / g)^2 * (v - v_reference)^2
    x, velocity = means(1, 4)
    sigma_next = sigma * (1 - share)
    settings = {"noise_level": noise_level, "sigma_max": 0.98}
    step = flow_sde_transition(x, velocity, sigma, sigma_next, **settings)
    reference = flow_sde_transition(x, velocity - difference, sigma, sigma_next, **settings)

    g, h = noise_level * math.sqrt(sigma / (1 - sigma)), sigma - sigma_next
    paper = h / 2 * (g * (1 - sigma) / (2 * sigma) + 1 / g) ** 2 * difference**2
    got = transition_kl(step.mean, reference.mean, step.std)
    assert got.item() == pytest.approx(paper, rel=1e-6, abs=1e-12)
    scaled = flowgrpo_kl(step.mean, reference.mean, step.std, h)
    by_g = ((step.mean - reference.mean) ** 2).mean().item() / (2 * g**2)
    assert scaled.item() == pytest.approx(by_g, rel=1e-9)


def test_it_is_the_expected_log_ratio():
    mean, reference = means(1, 400_000)
    std = torch.full((1, 1), 0.7, dtype=torch.float64)
    generator = torch.Generator().manual_seed(1)
    x_next = mean + std * torch.randn(mean.shape, generator=generator, dtype=torch.float64)
    log_ratio = transition_logprob(x_next, (mean, std)) - transition_logprob(
        x_next, (reference, std)
    )
    assert log_ratio.item() == pytest.approx(transition_kl(mean, reference, std).item(), rel=1e-2)


def test_by_hand():
    # differences 0 and 3, std 2: (0 + 9) / 2 / 8; with step_size 1/4, g = 4: 4.5 / 32
    mean, reference = torch.tensor([[1.0, 3.0]]), torch.tensor([[1.0, 0.0]])
    std = torch.full((1, 1), 2.0)
    assert transition_kl(mean, reference, std).item() == 0.5625
    assert flowgrpo_kl(mean, reference, std, 0.25).item() == 4.5 / 32


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_step_sizes_belong_to_trajectories(shape: tuple[int, ...]):
    mean, reference = means(*shape)
    std = torch.full((3, *[1] * (len(shape) - 1)), 0.5)
    step_size = torch.tensor([0.1, 0.2, 0.4])
    expected = transition_kl(mean, reference, std) * step_size
    torch.testing.assert_close(flowgrpo_kl(mean, reference, std, step_size), expected)
    got = flowgrpo_kl(mean, reference, std, step_size[2])
    torch.testing.assert_close(got[2], expected[2])
    with pytest.raises(ValueError, match="one per trajectory"):
        flowgrpo_kl(mean, reference, std, step_size[:2])


@given(st.floats(-1e3, 1e3), st.floats(1e-3, 1e3))
def test_it_is_symmetric_positive_and_zero_for_equal_means(shift: float, std: float):
    mean, _ = means(2, 3)
    spread = torch.full((2, 1), std, dtype=torch.float64)
    assert transition_kl(mean, mean, spread).count_nonzero() == 0
    there = transition_kl(mean, mean + shift, spread)
    assert (there >= 0).all()
    assert torch.equal(there, transition_kl(mean + shift, mean, spread))


def test_gradient_pulls_the_mean_to_the_reference():
    mean, reference = means(2, 6)
    mean.requires_grad_()
    std = torch.tensor([[0.5], [2.0]], dtype=torch.float64)
    transition_kl(mean, reference, std).sum().backward()
    assert mean.grad is not None
    torch.testing.assert_close(mean.grad, (mean.detach() - reference) / std**2 / 6)


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [(torch.bfloat16, torch.float32), (torch.float32, torch.float32), (torch.float64,) * 2],
)
def test_dtypes(dtype: torch.dtype, expected: torch.dtype):
    mean, reference = means(2, 3, dtype=dtype)
    assert transition_kl(mean, reference, torch.ones(2, 1)).dtype == expected
    assert flowgrpo_kl(mean, reference, torch.ones(2, 1), 0.1).dtype == expected


@pytest.mark.parametrize("std", [0.0, math.nan])
def test_a_deterministic_step_has_no_divergence(std: float):
    mean, reference = means(2, 3)
    with pytest.raises(ValueError, match="is not positive"):
        transition_kl(mean, reference, torch.tensor([[1.0], [std]]))
    with pytest.raises(ValueError, match="is not positive"):
        flowgrpo_kl(mean, reference, torch.tensor([[1.0], [std]]), 0.1)


def test_shapes_that_would_broadcast_are_refused():
    mean, reference = means(3, 3)
    with pytest.raises(ValueError, match="one shape"):
        transition_kl(mean, reference[:1], torch.ones(3, 1))
    with pytest.raises(ValueError, match="rank of mean"):
        transition_kl(mean, reference, torch.ones(3))
