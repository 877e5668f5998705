"""GRPO-Guard: the closed form of its gradient, the mean it restores, values by hand.

The recorded case of the published code, which averages the bias over the batch, is in
test_oracles_extras.py.
"""

import math

import pytest
import torch
from torch import Tensor

from digen_core.maths.flow_sde import Transition, flow_sde_transition, transition_logprob
from digen_core.maths.grpo import clipped_surrogate
from digen_core.maths.grpo_guard import guarded_surrogate
from digen_core.maths.kl import transition_kl

ONE = torch.ones(1)


def guarded(
    log_ratio: Tensor, bias: Tensor, std: Tensor, step_size: Tensor, advantages: Tensor, clip: float
):
    zeros = torch.zeros_like(log_ratio)
    return guarded_surrogate(log_ratio, zeros, bias, std, step_size, advantages, clip_range=clip)


@pytest.mark.parametrize(
    ("log_ratio", "bias", "advantage", "expected"),
    [
        # ratio exp((0.2 + 0.2) * 0.5) = exp(0.2) is clipped at 1.1; divided by 0.25
        (0.2, 0.2, 1.0, -4.4),
        (0.2, 0.2, -1.0, 4 * math.exp(0.2)),
        (-0.3, 0.1, 2.0, -8 * math.exp(-0.1)),
        (-0.3, 0.3, -2.0, 8.0),
    ],
)
def test_by_hand(log_ratio: float, bias: float, advantage: float, expected: float):
    got = guarded(log_ratio * ONE, bias * ONE, 0.5 * ONE, 0.25 * ONE, advantage * ONE, 0.1)
    assert got.loss.item() == pytest.approx(expected, rel=1e-6)
    assert got.ratio.item() == pytest.approx(math.exp((log_ratio + bias) / 2), rel=1e-6)
    # of the plain ratio, not of the normalised one
    assert got.approx_kl.item() == pytest.approx(math.expm1(log_ratio) - log_ratio, rel=1e-6)


def test_each_pair_is_on_its_own():
    log_ratio, bias = torch.tensor([0.01, -0.02, 0.03]), torch.tensor([0.0, 0.01, 0.02])
    std, step_size = torch.tensor([0.2, 0.4, 0.6]), torch.tensor([0.1, 0.2, 0.3])
    advantages = torch.tensor([1.0, -1.0, 2.0])
    together = guarded(log_ratio, bias, std.reshape(3, 1, 1), step_size, advantages, 0.004)
    for i in range(3):
        rows = slice(i, i + 1)
        alone = guarded(
            log_ratio[rows], bias[rows], std[rows], step_size[rows], advantages[rows], 0.004
        )
        torch.testing.assert_close(alone.loss, together.per_pair[i])
    torch.testing.assert_close(together.loss, together.per_pair.mean())
    assert together.clip_fraction == pytest.approx(1 / 3)


def steps_of(velocity: Tensor, x: Tensor, sigma: Tensor, sigma_next: Tensor) -> Transition:
    return flow_sde_transition(x, velocity, sigma, sigma_next, noise_level=0.7, sigma_max=0.9)


def test_the_gradient_is_the_noise_at_every_noise_level():
    # On-policy: d loss / d v = A / h * std * d logprob / d v = -A * noise * |dm/dv| / h / D
    torch.manual_seed(0)
    sigma, sigma_next = torch.tensor([1.0, 0.9, 0.4, 0.1]), torch.tensor([0.9, 0.6, 0.1, 0.08])
    x, velocity, noise = torch.randn(3, 4, 5, 6, dtype=torch.float64)
    behaviour = steps_of(velocity, x, sigma, sigma_next)
    x_next = behaviour.mean + behaviour.std * noise
    current = velocity.clone().requires_grad_()
    step = steps_of(current, x, sigma, sigma_next)
    got = guarded_surrogate(
        transition_logprob(x_next, step),
        transition_logprob(x_next, behaviour),
        transition_kl(step.mean, behaviour.mean, step.std),
        step.std,
        (sigma - sigma_next).double(),
        torch.ones(4),
        clip_range=1e-6,
    )
    got.per_pair.sum().backward()
    slope = torch.tensor([1 + 0.49 * 0 / 2, *[1 + 0.49 / 2] * 3], dtype=torch.float64)
    assert current.grad is not None
    torch.testing.assert_close(current.grad, noise * slope.reshape(4, 1, 1) / 30)


def test_the_bias_restores_the_mean_of_the_log_ratio():
    # E[log ratio] under the policy that sampled is -bias; with the bias it is 0
    torch.manual_seed(1)
    mean, behaviour_mean = torch.zeros(20000, 4), torch.full((20000, 4), 0.3)
    std = torch.full((20000, 1), 0.5)
    x_next = behaviour_mean + std * torch.randn(20000, 4)
    log_ratio = transition_logprob(x_next, Transition(mean, std)) - transition_logprob(
        x_next, Transition(behaviour_mean, std)
    )
    bias = transition_kl(mean, behaviour_mean, std)
    assert bias[0].item() == pytest.approx(0.18)
    assert log_ratio.mean().item() == pytest.approx(-0.18, abs=0.01)
    got = guarded(log_ratio, bias, std, torch.ones(20000), torch.ones(20000), 10.0)
    assert got.ratio.log().mean().item() == pytest.approx(0, abs=0.005)


def test_with_unit_scale_and_no_bias_it_is_the_plain_surrogate():
    log_ratio = torch.tensor([0.3, -0.3, 0.1])
    advantages = torch.tensor([1.0, -2.0, 3.0])
    ones = torch.ones(3)
    got = guarded(log_ratio, torch.zeros(3), ones, ones, advantages, 0.2)
    plain = clipped_surrogate(log_ratio, torch.zeros(3), advantages, clip_range=0.2)
    for ours, expected in zip(got, plain, strict=True):
        torch.testing.assert_close(ours, expected)


def test_bad_input_is_refused():
    two = torch.ones(2)
    with pytest.raises(ValueError, match="one number per pair"):
        guarded(two, two, torch.ones(1), two, two, 0.1)
    with pytest.raises(ValueError, match="must be positive"):
        guarded(two, two, two, torch.tensor([0.1, 0.0]), two, 0.1)
    with pytest.raises(ValueError, match="one shape"):
        guarded(two, two, two, two, torch.ones(2, 1), 0.1)
