"""The steps of which each sample trains some: DanceGRPO's, and DiffusionNFT's noise levels."""

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from digen_core.maths.windows import num_tail_steps, random_trained_steps


@given(st.integers(1, 25), st.data(), st.integers(0, 2**32 - 1))
def test_they_are_distinct_and_those_there_are(num_steps: int, data: st.DataObject, seed: int):
    num_trained = data.draw(st.integers(1, num_steps))
    got = random_trained_steps(5, num_steps, num_trained, np.random.default_rng(seed))
    assert got.shape == (5, num_trained)
    assert (np.diff(got, axis=1) > 0).all()
    assert got.min() >= 0
    assert got.max() < num_steps


@pytest.mark.parametrize(
    ("num_steps", "num_trained", "mean", "bound", "distinct"),
    [(15, 9, 2400, 155, 2000), (10, 9, 3600, 95, 10)],  # bounds are 5 standard deviations
    ids=["DanceGRPO", "DiffusionNFT"],
)
def test_each_is_as_likely_with_published_numbers(num_steps, num_trained, mean, bound, distinct):
    got = random_trained_steps(4000, num_steps, num_trained, np.random.default_rng(0))
    counts = np.bincount(got.flatten(), minlength=num_steps)
    assert abs(counts - mean).max() < bound
    assert len({tuple(row) for row in got.tolist()}) >= distinct  # drawn for each sample anew


@pytest.mark.parametrize(("num_steps", "num_trained"), [(15, 0), (15, 16), (0, 0)])
def test_none_and_more_than_there_are_are_refused(num_steps: int, num_trained: int):
    with pytest.raises(ValueError, match="at least one"):
        random_trained_steps(2, num_steps, num_trained, np.random.default_rng(0))


def test_fewer_steps_are_taken_after_the_window_as_published():
    """Of 25, with the window at steps 0 to 3: int(22 * 0.4) and int(22 * 0.2) levels."""
    assert num_tail_steps(25, 3, 0.4) == 7
    assert num_tail_steps(25, 3, 0.2) == 3
    assert num_tail_steps(25, 22, 0.4) == 1, "published: none, which leaves noise in the sample"
    assert num_tail_steps(25, 22, 1.0) == 2


@given(st.integers(2, 60), st.data(), st.floats(0.01, 1))
def test_at_least_one_step_is_taken_after_the_window_and_at_most_all(num_steps, data, fraction):
    last = data.draw(st.integers(0, num_steps - 2))
    taken, there = num_tail_steps(num_steps, last, fraction), num_steps - last - 1
    assert 1 <= taken <= there
    assert taken <= max(1, fraction * (there + 1))
    assert num_tail_steps(num_steps, last, 1.0) == there
