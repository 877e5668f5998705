"""DPM-Solver++(2M) of flows: diffusers' own steps, values by hand, and how its errors fall."""

import math
from collections.abc import Callable

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given
from torch import Tensor

from digen_core.maths.dpm_solver import predicted_clean, second_order_step
from digen_core.models.schedules import shifted_sigmas

Velocity = Callable[[Tensor, Tensor], Tensor]


def solve(velocity: Velocity, x: Tensor, sigmas: Tensor, *, second: bool = True) -> list[Tensor]:
    """The latents after each step."""
    found, before = [], None
    for step in range(len(sigmas) - 1):
        sigma, after = sigmas[step], sigmas[step + 1]
        v = velocity(x, sigma)
        clean = predicted_clean(x, v, sigma)
        x = x - (sigma - after) * v
        if second and before is not None:
            levels = {"sigma_before": sigmas[step - 1], "sigma": sigma, "sigma_next": after}
            x = second_order_step(x, clean, before, **levels)
        before = clean
        found.append(x)
    return found


def bent(x: Tensor, sigma: Tensor) -> Tensor:
    """A velocity that depends on all it may, and not linearly."""
    return torch.sin(2 * x) + x * sigma - torch.cos(3 * sigma)


@pytest.mark.parametrize(("num_steps", "shift"), [(4, 1.0), (10, 3.0), (25, 3.0)])
def test_every_step_is_that_of_diffusers(num_steps, shift):
    from diffusers import DPMSolverMultistepScheduler

    scheduler = DPMSolverMultistepScheduler(
        use_flow_sigmas=True,
        prediction_type="flow_prediction",
        algorithm_type="dpmsolver++",
        solver_type="midpoint",
        solver_order=2,
        flow_shift=shift,
    )
    scheduler.set_timesteps(num_steps)
    generator = torch.Generator().manual_seed(0)
    x = start = torch.randn(3, 4, 5, generator=generator)
    expected = []
    for step, timestep in enumerate(scheduler.timesteps):
        v = bent(x, scheduler.sigmas[step])
        x = scheduler.step(v, timestep, x, return_dict=False)[0]
        expected.append(x)
    found = solve(bent, start.double(), scheduler.sigmas.double())
    torch.testing.assert_close(torch.stack(found).float(), torch.stack(expected), rtol=0, atol=5e-6)
    plain = solve(bent, start.double(), scheduler.sigmas.double(), second=False)
    assert (plain[-1] - found[-1]).abs().max() > 1e-3, "Euler's are others"


def test_by_hand():
    # lambda is -ln 4, 0 and ln 4: h = h_0, so D = (m - m_before) / 2, times 1 - 0.2 / 0.5
    x, clean, before = torch.tensor([[1.0]]), torch.tensor([[3.0]]), torch.tensor([[1.0]])
    got = second_order_step(x, clean, before, sigma_before=0.8, sigma=0.5, sigma_next=0.2)
    assert got.item() == pytest.approx(1 + 0.6 * 1.0)
    # h_0 = ln 4, h = ln 9 - ln 1: D = ln 9 / (2 ln 4) * 2, times 1 - 0.1 / 0.5
    got = second_order_step(x, clean, before, sigma_before=0.8, sigma=0.5, sigma_next=0.1)
    assert got.item() == pytest.approx(1 + 0.8 * math.log(9) / math.log(4))
    assert predicted_clean(x, clean, 0.5).item() == -0.5


def test_after_pure_noise_and_to_the_end_it_is_an_euler_step():
    x, clean, before = torch.randn(3, 2, 4, 4, generator=torch.Generator().manual_seed(1))
    for levels in ((1.0, 0.9, 0.5), (0.9, 0.5, 0.0), (1.0, 0.9, 0.0)):
        names = dict(zip(("sigma_before", "sigma", "sigma_next"), levels, strict=True))
        assert torch.equal(second_order_step(x, clean, before, **names), x)


@given(st.integers(2, 12), st.floats(0.5, 5), st.integers(0, 2**32 - 1))
def test_a_clean_latent_that_is_known_is_reached(num_steps: int, shift: float, seed: int):
    """Where the prediction does not change, no step adds anything to Euler's."""
    target, x = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(seed)).double()
    sigmas = shifted_sigmas(num_steps, shift).double()
    found = solve(lambda x, sigma: (x - target) / sigma, x, sigmas)
    torch.testing.assert_close(found[-1], target)


def test_errors_fall_with_the_square_of_the_step():
    """Of Gaussian data N(1, 0.25), whose ODE is solved in closed form; Euler's fall by half."""
    mean, variance = 1.0, 0.25

    def scale(sigma: Tensor) -> Tensor:
        return ((1 - sigma) ** 2 * variance + sigma**2).sqrt()

    def velocity(x: Tensor, sigma: Tensor) -> Tensor:
        slope = (sigma - (1 - sigma) * variance) / scale(sigma) ** 2
        return slope * (x - (1 - sigma) * mean) - mean

    start, end = torch.tensor(0.9).double(), torch.tensor(0.1).double()
    x = torch.linspace(-2, 2, 5).double()[:, None]
    exact = (1 - end) * mean + scale(end) / scale(start) * (x - (1 - start) * mean)

    def error(num_steps: int, *, second: bool) -> float:
        sigmas = torch.linspace(0.9, 0.1, num_steps + 1).double()
        return float((solve(velocity, x, sigmas, second=second)[-1] - exact).abs().max())

    orders = {
        second: math.log2(error(64, second=second) / error(128, second=second))
        for second in (False, True)
    }
    assert orders[False] == pytest.approx(1, abs=0.1)
    assert orders[True] == pytest.approx(2, abs=0.15)
    assert error(16, second=True) < error(16, second=False) / 4


@pytest.mark.parametrize("levels", [(0.5, 0.5, 0.2), (0.8, 0.5, 0.6), (0.8, 0.0, 0.0)])
def test_levels_that_do_not_fall_are_refused(levels):
    x = torch.ones(2, 3)
    names = dict(zip(("sigma_before", "sigma", "sigma_next"), levels, strict=True))
    with pytest.raises(ValueError, match="must fall"):
        second_order_step(x, x, x, **names)
    with pytest.raises(ValueError, match=r"clean_before \[1, 3\]"):
        second_order_step(x, x, x[:1], sigma_before=0.8, sigma=0.5, sigma_next=0.2)
