"""The transitions: diffusers and torch.distributions, closed forms, properties, hand values.

Recorded outputs of the published code are in test_oracles.py.
"""

import math

import hypothesis.strategies as st
import pytest
import torch
from diffusers import FlowMatchEulerDiscreteScheduler
from hypothesis import given
from torch import Tensor
from torch.distributions import Independent, Normal

from digen_core.maths.flow_sde import (
    LOGPROBS,
    TRANSITIONS,
    Transition,
    cps_logprob,
    cps_transition,
    dance_transition,
    flow_sde_transition,
    longcat_transition,
    transition_logprob,
)
from support.second_device import second_device

NAMES = sorted(TRANSITIONS)
SHAPES = [(3, 5), (3, 6, 8), (3, 4, 8, 8), (3, 2, 3, 4, 5)]

sigma_pairs = st.tuples(st.floats(0.05, 0.95), st.floats(0.0, 1.0)).map(
    lambda pair: (pair[0], pair[0] * pair[1])
)


def batch(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x, velocity = torch.randn(2, *shape, generator=generator, dtype=torch.float64).to(dtype)
    return x, velocity


def scalar_step(
    name: str, x: float, velocity: float, sigma: float, sigma_next: float, **settings: float
) -> tuple[float, float]:
    """Return mean and std of a one-element latent, in float64."""
    one = torch.ones(1, 1, dtype=torch.float64)
    step = TRANSITIONS[name](x * one, velocity * one, sigma, sigma_next, **settings)
    return step.mean.item(), step.std.item()


# --- library references


@pytest.mark.parametrize("step_index", [0, 2, 4])
@pytest.mark.parametrize("name", NAMES)
def test_without_noise_it_is_the_euler_step_of_diffusers(name: str, step_index: int):
    x, v = batch(3, 4, 8, 8)
    scheduler = FlowMatchEulerDiscreteScheduler(shift=3.0)
    scheduler.set_timesteps(5)
    sigmas = scheduler.sigmas

    step = TRANSITIONS[name](
        x, v, sigmas[step_index], sigmas[step_index + 1], noise_level=0.0, sigma_max=0.98
    )

    expected = scheduler.step(v, scheduler.timesteps[step_index], x).prev_sample
    torch.testing.assert_close(step.mean, expected)
    assert step.std.count_nonzero() == 0


def test_cps_with_all_noise_fresh_is_the_stochastic_step_of_diffusers():
    x, v = batch(3, 4, 8, 8)
    scheduler = FlowMatchEulerDiscreteScheduler(shift=3.0, stochastic_sampling=True)
    scheduler.set_timesteps(5)
    step = cps_transition(
        x, v, scheduler.sigmas[2], scheduler.sigmas[3], noise_level=1.0, sigma_max=0.98
    )

    torch.manual_seed(0)
    expected = scheduler.step(v, scheduler.timesteps[2], x).prev_sample
    torch.manual_seed(0)
    torch.testing.assert_close(step.mean + step.std * torch.randn_like(x), expected)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_logprob_is_the_mean_of_a_diagonal_normal(shape: tuple[int, ...]):
    x, v = batch(*shape)
    sigma, sigma_next = torch.tensor([1.0, 0.6, 0.2]), torch.tensor([0.9, 0.5, 0.1])
    step = flow_sde_transition(x, v, sigma, sigma_next, noise_level=0.7, sigma_max=0.98)
    x_next = step.mean + step.std * torch.randn_like(x)

    joint = Independent(Normal(step.mean, step.std.expand_as(x)), len(shape) - 1).log_prob(x_next)
    num_elements = math.prod(shape[1:])
    torch.testing.assert_close(transition_logprob(x_next, step), joint / num_elements)


# --- closed forms


@given(
    sigma_pairs,
    st.floats(0.0, 1.5),
    st.floats(-3, 3),
    st.floats(0.1, 2),
    st.sampled_from(["flow_sde", "dance", "wan_sde", "longcat_sde"]),
)
def test_sde_drift_is_velocity_minus_half_g_squared_score(
    sigmas: tuple[float, float], noise_level: float, x: float, r: float, name: str
):
    # For x_0 ~ N(mu, r^2) velocity and score are known: x_sigma ~ N((1 - sigma) mu, variance).
    mu, (sigma, sigma_next) = 0.7, sigmas
    variance = (1 - sigma) ** 2 * r**2 + sigma**2
    off_centre = x - (1 - sigma) * mu
    velocity = -mu + (sigma - (1 - sigma) * r**2) / variance * off_centre
    score = -off_centre / variance

    mean, std = scalar_step(
        name, x, velocity, sigma, sigma_next, noise_level=noise_level, sigma_max=0.98
    )

    h = sigma - sigma_next
    g = noise_level * {
        "dance": 1.0,
        "wan_sde": 0.98 * sigma,
    }.get(name, math.sqrt(sigma / (1 - sigma)))
    if name == "longcat_sde" and g * math.sqrt(h) > 0.45:
        g = 0.45 / math.sqrt(h)
    assert mean == pytest.approx(x - h * (velocity - g**2 / 2 * score), rel=1e-9, abs=1e-9)
    assert std == pytest.approx(g * math.sqrt(h))


@pytest.mark.parametrize(("noise_level", "sigma"), [(0.7, 0.8), (1.2, 0.3)])
def test_gradients_of_the_means_have_closed_forms(noise_level: float, sigma: float):
    sigma_next = sigma - 0.2
    odds = sigma / (1 - sigma)
    truncated = min(noise_level**2 * odds, 0.45**2 / 0.2)
    expected = {
        "flow_sde": -0.2 * (1 + noise_level**2 / 2),
        "longcat_sde": -0.2 * (1 + truncated / odds / 2),
        "wan_sde": -0.2 * (1 + (noise_level * 0.98) ** 2 * sigma * (1 - sigma) / 2),
        "dance": -0.2 * (1 + noise_level**2 * (1 - sigma) / (2 * sigma)),
        "cps": -sigma * (1 - sigma_next)
        + (1 - sigma) * sigma_next * abs(math.cos(noise_level * math.pi / 2)),
    }
    x, v = batch(3, 4, 8, dtype=torch.float64)
    for name, transition in TRANSITIONS.items():
        velocity = v.clone().requires_grad_()
        step = transition(x, velocity, sigma, sigma_next, noise_level=noise_level, sigma_max=0.98)
        step.mean.sum().backward()
        assert velocity.grad is not None
        torch.testing.assert_close(velocity.grad, torch.full_like(v, expected[name]))


def test_cps_logprob_is_the_gaussian_one_without_its_constants_and_scale():
    x, v = batch(3, 4, 8, 8, dtype=torch.float64)
    step = cps_transition(x, v, 0.6, 0.4, noise_level=0.8, sigma_max=0.98)
    x_next = step.mean + step.std * torch.randn_like(x)
    std = step.std.flatten()
    quadratic = transition_logprob(x_next, step) + std.log() + 0.5 * math.log(2 * math.pi)
    torch.testing.assert_close(cps_logprob(x_next, step), 2 * std**2 * quadratic)


# --- properties


@given(st.floats(0.0, 1.5), st.floats(0.3, 2), st.floats(-2, 2))
def test_marginals_do_not_depend_on_the_noise_level(noise_level: float, r: float, mu: float):
    # For x_0 ~ N(mu, r^2) the exact velocity is affine in x, so a step keeps x Gaussian:
    # mean' = slope * mean + offset, variance' = slope^2 variance + std^2. Both must follow the
    # flow's marginals up to O(step_size^2), at any noise level. All sigmas go in one batch.
    step_size = 1e-5
    sigma = torch.linspace(0.05, 0.95, 19, dtype=torch.float64)
    variance = (1 - sigma) ** 2 * r**2 + sigma**2
    gain = (sigma - (1 - sigma) * r**2) / variance
    for transition in (flow_sde_transition, dance_transition):

        def at(x: float, transition=transition) -> Transition:
            velocity = -mu + gain * (x - (1 - sigma) * mu)
            return transition(
                torch.full((19, 1), x, dtype=torch.float64),
                velocity[:, None],
                sigma,
                sigma - step_size,
                noise_level=noise_level,
                sigma_max=0.98,
            )

        offset = at(0.0).mean.flatten()
        slope = at(1.0).mean.flatten() - offset
        mean_next = slope * (1 - sigma) * mu + offset
        variance_next = slope**2 * variance + at(0.0).std.flatten() ** 2

        sigma_next = sigma - step_size
        marginal = (1 - sigma_next) ** 2 * r**2 + sigma_next**2
        # a mistake in drift or std is 1e-5 times a number near 1, the O(step_size^2) rest < 1e-7
        torch.testing.assert_close(mean_next, (1 - sigma_next) * mu, atol=2e-7, rtol=0)
        torch.testing.assert_close(variance_next, marginal, atol=2e-7, rtol=0)


@given(sigma_pairs, st.floats(0.0, 1.0), st.floats(-2, 2))
def test_cps_keeps_the_marginals_of_known_data_at_any_step_size(
    sigmas: tuple[float, float], noise_level: float, x_0: float
):
    # If all data is x_0, x ~ N((1 - sigma) x_0, sigma^2) and velocity = (x - x_0) / sigma.
    sigma, sigma_next = sigmas

    def at(x: float) -> tuple[float, float]:
        velocity = (x - x_0) / sigma
        return scalar_step(
            "cps", x, velocity, sigma, sigma_next, noise_level=noise_level, sigma_max=0.98
        )

    (offset, std), (at_one, _) = at(0.0), at(1.0)
    slope = at_one - offset
    assert slope * (1 - sigma) * x_0 + offset == pytest.approx((1 - sigma_next) * x_0, abs=1e-9)
    assert (slope * sigma) ** 2 + std**2 == pytest.approx(sigma_next**2, abs=1e-9)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_trajectory_is_on_its_own(name: str, shape: tuple[int, ...]):
    x, v = batch(*shape, dtype=torch.float64)
    sigma, sigma_next = torch.tensor([1.0, 0.6, 0.2]), torch.tensor([0.9, 0.5, 0.1])
    settings = {"noise_level": 0.7, "sigma_max": 0.9}
    together = TRANSITIONS[name](x, v, sigma, sigma_next, **settings)
    assert together.mean.shape == x.shape
    assert together.std.shape == (3, *[1] * (len(shape) - 1))
    for i in range(3):
        rows = slice(i, i + 1)
        for numbers in (
            (sigma[rows], sigma_next[rows]),
            (sigma[i], sigma_next[i]),
            (sigma[i].item(), sigma_next[i].item()),
        ):
            alone = TRANSITIONS[name](x[rows], v[rows], *numbers, **settings)
            assert torch.equal(alone.mean, together.mean[rows])
            assert torch.equal(alone.std, together.std[rows])
    shared = TRANSITIONS[name](x, v, 0.6, 0.5, **settings)
    assert shared.std.shape == together.std.shape


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision_is_computed_in_float32(name: str, dtype: torch.dtype):
    x, v = batch(3, 4, 8, dtype=dtype)
    sigma = torch.tensor([0.875, 0.5, 0.25], dtype=dtype)  # exact in half precision
    settings = {"noise_level": 0.7, "sigma_max": 0.98}
    step = TRANSITIONS[name](x, v, sigma, sigma / 2, **settings)
    exact = TRANSITIONS[name](x.float(), v.float(), sigma.float(), sigma.float() / 2, **settings)
    assert step.mean.dtype == step.std.dtype == torch.float32
    assert torch.equal(step.mean, exact.mean)
    assert torch.equal(step.std, exact.std)

    logprob = LOGPROBS[name](x, Transition(step.mean.to(dtype), step.std))
    assert logprob.dtype == torch.float32


@pytest.mark.parametrize("name", NAMES)
def test_float64_latents_stay_float64(name: str):
    x, v = batch(3, 4, 8, dtype=torch.float64)
    sigma = torch.tensor([0.9, 0.5, 0.3])
    settings = {"noise_level": 0.7, "sigma_max": 0.98}
    step = TRANSITIONS[name](x, v, sigma, sigma / 2, **settings)
    exact = TRANSITIONS[name](x, v, sigma.double(), sigma.double() / 2, **settings)
    assert step.mean.dtype == step.std.dtype == LOGPROBS[name](x, step).dtype == torch.float64
    assert torch.equal(step.mean, exact.mean)


def test_names_of_transitions_and_logprobs_agree():
    assert set(TRANSITIONS) == set(LOGPROBS)
    assert LOGPROBS["cps"] is cps_logprob


# --- by hand


@pytest.mark.parametrize(
    ("name", "velocity", "sigma", "sigma_next", "noise_level", "mean", "std"),
    [
        # g = 0.7 sqrt(0.8 / 0.2) = 1.4; noise = 1 + 0.2 * 2 = 1.4; drift = 2 + 1.96 / 1.6 * 1.4
        pytest.param("flow_sde", 2, 0.8, 0.55, 0.7, 1 - 0.25 * 3.715, 0.7, id="flow_sde"),
        # sigma_max 0.96: g = 0.7 / sqrt(0.04) = 3.5; std = a, mean = x (1 - a^2 / 2) - h v
        pytest.param("flow_sde", 2, 1.0, 0.96, 0.7, 0.675, 0.7, id="flow_sde at pure noise"),
        # the drift does not diverge at the end: g = 0.5 * sqrt(0.2 / 0.8) = 0.25
        pytest.param("flow_sde", 1, 0.2, 0.0, 0.5, 0.74375, 0.25 * 0.2**0.5, id="flow_sde ends"),
        # noise = 1 + 0.5 * 2 = 2; drift = 2 + 0.16 / 1 * 2 = 2.32
        pytest.param("dance", 2, 0.5, 0.25, 0.4, 0.42, 0.2, id="dance"),
        pytest.param("dance", 2, 1.0, 0.75, 0.4, 0.48, 0.2, id="dance at pure noise"),
        # g = 0.5 * 0.96 * 0.5 = 0.24: drift = 2 + 0.0576 / 1 * 2 = 2.1152, std = 0.24 / 2
        pytest.param("wan_sde", 2, 0.5, 0.25, 0.5, 0.4712, 0.12, id="wan_sde"),
        # flow_sde's g = 1.4 would give std 0.7: g = 0.9, drift = 2 + 0.81 / 1.6 * 1.4 = 2.70875
        pytest.param("longcat_sde", 2, 0.8, 0.55, 0.7, 0.3228125, 0.45, id="longcat_sde truncates"),
        pytest.param("longcat_sde", 1, 0.2, 0.0, 0.5, 0.74375, 0.25 * 0.2**0.5, id="longcat_sde"),
        # sin 30 deg = 1/2; clean 0.5, noise 1.5; mean = 0.6 * 0.5 + 0.4 cos 30 deg * 1.5
        pytest.param("cps", 1, 0.5, 0.4, 1 / 3, 0.3 + 0.3 * 3**0.5, 0.2, id="cps"),
        pytest.param("cps", 1, 0.5, 0.4, 1.0, 0.3, 0.4, id="cps all fresh"),
        pytest.param("cps", 1, 0.5, 0.0, 0.8, 0.5, 0.0, id="cps ends"),
    ],
)
def test_steps_by_hand(
    name: str,
    velocity: float,
    sigma: float,
    sigma_next: float,
    noise_level: float,
    mean: float,
    std: float,
):
    got = scalar_step(
        name, 1.0, velocity, sigma, sigma_next, noise_level=noise_level, sigma_max=0.96
    )
    assert got == pytest.approx((mean, std), rel=1e-12, abs=1e-12)


def test_logprobs_by_hand():
    # deviations 0 and 2 with std 2: z = 0 and 1
    step = Transition(torch.zeros(1, 2), torch.full((1, 1), 2.0))
    x_next = torch.tensor([[0.0, 2.0]])
    expected = -0.25 - math.log(2) - 0.5 * math.log(2 * math.pi)
    assert transition_logprob(x_next, step).item() == pytest.approx(expected, rel=1e-6)
    assert cps_logprob(x_next, step).item() == -2.0


def test_sigma_max_replaces_only_a_rounded_one():
    def g(sigma: float) -> float:
        settings = {"noise_level": 1.0, "sigma_max": 0.75}
        return scalar_step("flow_sde", 1.0, 1.0, sigma, 0.5, **settings)[1] / (sigma - 0.5) ** 0.5

    assert g(1.0) == pytest.approx(2)
    assert g(1 - 5e-7) == pytest.approx(2, rel=1e-6)
    assert g(0.9997) == pytest.approx((0.9997 / 0.0003) ** 0.5)


@given(sigma_pairs, st.floats(0.1, 2), st.floats(0.05, 1))
def test_longcat_is_flow_sde_until_its_std_is_too_large(
    sigmas: tuple[float, float], noise_level: float, max_std: float
):
    settings = {"noise_level": noise_level, "sigma_max": 0.98}
    one = torch.ones(1, 1, dtype=torch.float64)
    flow = flow_sde_transition(one, 2 * one, *sigmas, **settings)
    got = longcat_transition(one, 2 * one, *sigmas, **settings, max_std=max_std)
    if flow.std.item() < max_std * (1 - 1e-9):
        assert torch.equal(got.mean, flow.mean)
        assert torch.equal(got.std, flow.std)
    else:
        assert got.std.item() == pytest.approx(max_std)


# --- refusals


@pytest.mark.parametrize("name", NAMES)
def test_a_deterministic_step_has_no_logprob(name: str):
    x, v = batch(3, 4, 8)
    step = TRANSITIONS[name](x, v, 1.0, 0.5, noise_level=0.0, sigma_max=1.0)
    with pytest.raises(ValueError, match="deterministic step has no log-density"):
        LOGPROBS[name](x, step)


@pytest.mark.parametrize("logprob", [transition_logprob, cps_logprob])
@pytest.mark.parametrize("std", [0.0, -1.0, math.nan])
def test_one_bad_std_is_enough(logprob, std: float):
    step = Transition(torch.zeros(2, 3), torch.tensor([[1.0], [std]]))
    with pytest.raises(ValueError, match="is not positive"):
        logprob(torch.zeros(2, 3), step)


@pytest.mark.parametrize("logprob", [transition_logprob, cps_logprob])
@pytest.mark.parametrize("std", [0.0, -1.0, math.nan])
def test_a_bad_std_that_is_not_looked_at_makes_no_number(logprob, std: float):
    """What an accelerator has is not read."""
    with second_device() as device:
        mean, both = torch.zeros(2, 3, device=device), torch.tensor([[1.0], [std]]).to(device)
        found = logprob(mean, Transition(mean, both)).cpu()
    assert found.isnan().tolist() == [False, True]


@pytest.mark.parametrize("name", NAMES)
def test_noise_levels_of_the_host_are_looked_at_whatever_the_device(name: str):
    with second_device() as device:
        x = torch.zeros(2, 3, device=device)
        with pytest.raises(ValueError, match="from sigma in"):
            TRANSITIONS[name](x, x, 0.5, 0.6, noise_level=0.7, sigma_max=0.98)


@pytest.mark.parametrize("logprob", [transition_logprob, cps_logprob])
def test_shapes_that_would_broadcast_are_refused(logprob):
    with pytest.raises(ValueError, match="must have one shape"):
        logprob(torch.zeros(4, 3), Transition(torch.zeros(1, 3), torch.ones(1, 1)))
    with pytest.raises(ValueError, match="rank of mean"):
        logprob(torch.zeros(3, 3), Transition(torch.zeros(3, 3), torch.ones(3)))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("sigma", "sigma_next", "noise_level", "message"),
    [
        pytest.param(900.0, 800.0, 0.7, "from sigma in", id="timesteps"),
        pytest.param(0.5, 0.6, 0.7, "from sigma in", id="upwards"),
        pytest.param(0.0, 0.0, 0.7, "from sigma in", id="finished"),
        pytest.param(math.nan, 0.5, 0.7, "from sigma in", id="nan"),
        pytest.param(0.5, 0.4, -0.1, "must not be negative", id="negative noise"),
        pytest.param(torch.tensor([0.5, 0.4]), 0.3, 0.7, "one per trajectory", id="two for three"),
    ],
)
def test_impossible_steps_are_refused(
    name: str, sigma: float | Tensor, sigma_next: float, noise_level: float, message: str
):
    x, v = batch(3, 4, 8)
    with pytest.raises(ValueError, match=message):
        TRANSITIONS[name](x, v, sigma, sigma_next, noise_level=noise_level, sigma_max=0.98)


@pytest.mark.parametrize("name", NAMES)
def test_latents_and_velocity_must_have_one_shape(name: str):
    x, v = batch(3, 4, 8)
    with pytest.raises(ValueError, match="must have one shape"):
        TRANSITIONS[name](x, v[:1], 0.5, 0.4, noise_level=0.7, sigma_max=0.98)


@pytest.mark.parametrize("sigma_max", [0.0, 1.0])
def test_pure_noise_needs_a_sigma_max_below_one(sigma_max: float):
    x, v = batch(3, 4, 8)
    with pytest.raises(ValueError, match="sigma_max"):
        flow_sde_transition(x, v, 1.0, 0.9, noise_level=0.7, sigma_max=sigma_max)
