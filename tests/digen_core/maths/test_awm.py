"""AWM: numbers of the published code, values by hand, its gradient in closed form, its steps."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from digen_core.algorithms import ALGORITHMS
from digen_core.maths.awm import awm_loss, matching_logprob
from digen_core.maths.forward_process import noised, old_policy_decay
from digen_core.maths.replay import Noised
from digen_core.maths.windows import stratified_steps

WEIGHTINGS = ["uniform", "t", "t2", "huber", "ghuber"]
SIGMA = torch.tensor([0.9, 0.6, 0.3], dtype=torch.float64)


def wave(phase: float) -> Tensor:
    """Numbers [3, 2, 2, 2] that need no generator."""
    return torch.sin(torch.arange(24, dtype=torch.float64) * 0.7 + phase).reshape(3, 2, 2, 2)


def pairs_of(velocity: Tensor, start: Tensor, reference: Tensor | None, *advantages: float):
    x_0, noise = wave(0.0), wave(1.0)
    x = noised(x_0, noise, SIGMA)
    advantage = torch.tensor(advantages, dtype=torch.float64)
    return Noised(velocity, start, reference, x, noise, x_0, SIGMA, advantage)


# Recorded: the lines of `compute_log_prob_awm` and of the loss in train_sd3_awm.py of
# scxue/advantage_weighted_matching (commit 12b1397), run in float64 on these very tensors:
# log-probs [3], ratios [3], the loss, and the sum of absolute gradients by the velocity.
RECORDED = {
    "uniform": (
        [-0.13687089538473501, -0.15991915864327222, -0.16719460421238524],
        [1.022552721892539, 1.0248165273893148, 1.0338974514006656],
        (0.1763819430346017, 0.34295998370527403, 1.0),
    ),
    "t": (
        [-0.12318380584626151, -0.09595149518596333, -0.05015838126371557],
        [1.0202747486258332, 1.0148168565734887, 1.0100508522739946],
        (0.17338035768685983, 0.24260087310205639, 1 / 3),
    ),
    "t2": (
        [-0.11086542526163537, -0.057570897111578, -0.015047514379114672],
        [1.0182289118883183, 1.008863949793512, 1.0030047086264022],
        (0.17186707196334486, 0.21884862071900685, 0.0),
    ),
    "huber": (
        [-0.3329556007350261, -0.2399333613969538, -0.12266531044778708],
        [1.0264475826951909, 1.0178926384582643, 1.011741885632979],
        (0.17434925053648556, 0.27678460467372734, 1 / 3),
    ),
    "ghuber": (
        [-2.178293916171089, -1.510112042282816, -0.7635434518014668],
        [1.0878618967007871, 1.056634180410226, 1.0363257253373266],
        (0.1869878273749054, 0.6994306525346365, 1.0),
    ),
}


@pytest.mark.parametrize("weighting", WEIGHTINGS)
def test_the_published_numbers(weighting):
    """Advantages of 2, -7 and 0.5 are clamped to 5, divided by it, and count as weights."""
    velocity = (1.5 * wave(2.0)).requires_grad_()
    start = velocity.detach() + 0.1 * wave(3.0)
    reference = velocity.detach() + 0.2 * wave(4.0)
    pairs = pairs_of(velocity, start, reference, 2 / 5, -1.0, 0.1)
    found = awm_loss(pairs, weighting=weighting, clip_range=0.02, reference_coefficient=0.003)
    logprob, ratio, (loss, gradient, clipped) = RECORDED[weighting]
    given = (velocity, pairs.noise, pairs.x_0, SIGMA)
    expected = torch.tensor(logprob, dtype=torch.float64)
    torch.testing.assert_close(
        matching_logprob(*given, weighting=weighting), expected, rtol=1e-12, atol=0
    )
    np.testing.assert_allclose(found.surrogate.ratio.numpy(), ratio, rtol=1e-12)
    found.per_pair.mean().backward()
    assert velocity.grad is not None
    assert found.per_pair.mean().item() == pytest.approx(loss, rel=1e-12)
    assert velocity.grad.abs().sum().item() == pytest.approx(gradient, rel=1e-12)
    assert found.surrogate.clip_fraction.item() == pytest.approx(clipped)


def test_by_hand():
    # noise - x_0 = 1; v = 3: L = 4; v_start = 2: L = 1; sigma = 0.5, weighting t:
    # log-probs -2 and -0.5, ratio e^-1.5, unclipped at range 1
    one = torch.ones(1, 1, dtype=torch.float64)
    sigma, advantage = torch.tensor([0.5]), torch.tensor([2.0])
    pairs = Noised(3 * one, 2 * one, one, 1.5 * one, 2 * one, one, sigma, advantage)
    found = awm_loss(pairs, weighting="t", start_coefficient=0.5, reference_coefficient=0.25)
    assert found.surrogate.per_pair.item() == pytest.approx(-2 * np.exp(-1.5))
    assert found.start.item() == pytest.approx(1)
    assert found.reference.item() == pytest.approx(4)
    assert found.per_pair.item() == pytest.approx(-2 * np.exp(-1.5) + 0.5 * 1 + 0.25 * 4)


def test_where_nothing_has_moved_the_gradient_is_that_of_weighted_matching():
    """At v = v_start ratios are 1: d loss / d v = A * d L / d v, a weighted regression."""
    velocity = wave(2.0).requires_grad_()
    pairs = pairs_of(velocity, velocity.detach(), None, 1.0, -0.5, 0.0)
    found = awm_loss(pairs, weighting="uniform")
    found.per_pair.sum().backward()
    error = 2 * (velocity.detach() - (pairs.noise - pairs.x_0)) / 8
    assert velocity.grad is not None
    torch.testing.assert_close(velocity.grad, pairs.advantage.reshape(3, 1, 1, 1) * error)
    assert found.start.count_nonzero() == found.reference.count_nonzero() == 0
    assert found.surrogate.clip_fraction == 0


def test_a_perfect_velocity_has_a_finite_gradient():
    """The root of a loss of 0 has none: that is what the least loss is for."""
    for weighting in ("huber", "ghuber"):
        velocity = (wave(1.0) - wave(0.0)).requires_grad_()
        given = (velocity, wave(1.0), wave(0.0), SIGMA)
        logprob = matching_logprob(*given, weighting=weighting)
        assert logprob.count_nonzero() == 0
        logprob.sum().backward()
        assert velocity.grad is not None
        assert velocity.grad.isfinite().all()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"weighting": "t3"}, "weighting .'t3'. must be"),
        ({"velocity": wave(0.0)[:2]}, "must have one shape"),
        ({"sigma": SIGMA[:2]}, "must have one shape"),
    ],
)
def test_what_is_refused(changes, message):
    given = {"velocity": wave(2.0), "noise": wave(1.0), "x_0": wave(0.0), "sigma": SIGMA}
    with pytest.raises(ValueError, match=message):
        matching_logprob(**{**given, **changes})


@given(st.integers(0, 20), st.integers(1, 60), st.integers(1, 60), st.integers(0, 2**32))
def test_each_part_of_the_schedule_has_one_step(first, length, number, seed):
    number = min(number, length)
    steps = stratified_steps(first, first + length, number, np.random.default_rng(seed))
    assert len(steps) == number
    assert list(steps) == sorted(set(steps))
    assert all(first <= step < first + length for step in steps)


def test_the_published_parts_and_each_step_of_them_comes():
    """14 steps, six of the levels from 1 to 11: parts of two steps, but for the last of the six."""
    algorithm = ALGORITHMS["awm"]()
    algorithm.check_steps(14)
    drawn = [algorithm.steps(14, i, np.random.default_rng(i)).trained for i in range(200)]
    parts = [sorted({steps[part] for steps in drawn}) for part in range(6)]
    assert parts == [[1], [2, 3], [4, 5], [6, 7], [8, 9], [10, 11]]


def test_the_published_decay():
    found = [old_policy_decay(updates, "low_ramp") for updates in (0, 100, 1000)]
    assert found == pytest.approx([0, 0.1, 0.3])
