"""LongCat-Video: its weights make the gradient the same at every step; values by hand."""

import pytest
import torch

from digen_core.maths.flow_sde import flow_sde_transition, transition_logprob
from digen_core.maths.grpo import clipped_surrogate
from digen_core.maths.kl import transition_kl
from digen_core.maths.longcat import step_weights

SIGMA = torch.tensor([0.99, 0.8, 0.3, 0.1], dtype=torch.float64)
SIGMA_NEXT = torch.tensor([0.98, 0.5, 0.25, 0.0], dtype=torch.float64)
SETTINGS = {"noise_level": 1.0, "sigma_max": 0.98}


def test_weights_by_hand():
    # 0.8 / (0.2 * 0.25) = 16; at pure noise 1 / (0.1 * 0.1) = 100 with sigma_max 0.9
    got = step_weights(torch.tensor([0.8, 1.0]), torch.tensor([0.55, 0.9]), sigma_max=0.9)
    torch.testing.assert_close(got.policy, torch.tensor([4.0, 10.0]))
    torch.testing.assert_close(got.kl, torch.tensor([16.0, 100.0]))


def test_the_weighted_policy_gradient_is_three_halves_of_the_noise():
    torch.manual_seed(0)
    x, velocity, noise = torch.randn(3, 4, 5, 6, dtype=torch.float64)
    behaviour = flow_sde_transition(x, velocity, SIGMA, SIGMA_NEXT, **SETTINGS)
    x_next = behaviour.mean + behaviour.std * noise
    current = velocity.clone().requires_grad_()
    step = flow_sde_transition(x, current, SIGMA, SIGMA_NEXT, **SETTINGS)
    advantages = torch.tensor([1.0, -2.0, 0.5, 3.0], dtype=torch.float64)
    surrogate = clipped_surrogate(
        transition_logprob(x_next, step),
        transition_logprob(x_next, behaviour),
        advantages,
        clip_range=0.2,
    )
    weights = step_weights(SIGMA, SIGMA_NEXT, sigma_max=0.98)
    (weights.policy * surrogate.per_pair).sum().backward()
    assert current.grad is not None
    # eq. 3 of the paper, up to its sign convention, over 30 elements
    torch.testing.assert_close(current.grad, 1.5 * advantages.reshape(4, 1, 1) * noise / 30)


def test_the_weighted_kl_depends_on_the_velocities_alone():
    torch.manual_seed(1)
    x, velocity = torch.randn(2, 4, 5, 6, dtype=torch.float64)
    mean, reference, std = (
        flow_sde_transition(x, velocity, SIGMA, SIGMA_NEXT, **SETTINGS).mean,
        flow_sde_transition(x, velocity + 0.1, SIGMA, SIGMA_NEXT, **SETTINGS).mean,
        flow_sde_transition(x, velocity, SIGMA, SIGMA_NEXT, **SETTINGS).std,
    )
    weights = step_weights(SIGMA, SIGMA_NEXT, sigma_max=0.98)
    got = weights.kl * transition_kl(mean, reference, std)
    torch.testing.assert_close(got, torch.full((4,), 2.25 * 0.01 / 2, dtype=torch.float64))


def test_steps_without_length_are_refused():
    with pytest.raises(ValueError, match="must be below"):
        step_weights(torch.tensor([0.5, 0.4]), torch.tensor([0.4, 0.4]), sigma_max=0.9)
    with pytest.raises(ValueError, match="sigma_max"):
        step_weights(torch.ones(1), torch.zeros(1), sigma_max=1.0)
