"""Schedules of which the last steps are others: spread as they were, of families and of shifts."""

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given

from digen_core.models.schedules import shifted_sigmas, with_tail
from support.tiny_policies import load


def test_the_tail_of_a_shifted_schedule_by_hand():
    """MixGRPO-Flash: evenly spread before the shift. Of u = 0.6 the thirds are 0.4 and 0.2."""
    found = with_tail(shifted_sigmas(10, 3.0), 4, 3)
    u = torch.tensor([1.0, 0.9, 0.8, 0.7, 0.6, 0.4, 0.2, 0.0])
    torch.testing.assert_close(found, 3 * u / (1 + 2 * u))
    assert found[5].item() == pytest.approx(1.2 / 1.8)


@given(st.integers(2, 40), st.floats(0.5, 12), st.data())
def test_tails_are_evenly_spread_before_the_shift(length: int, shift: float, data: st.DataObject):
    first = data.draw(st.integers(1, length - 1))
    num_steps = data.draw(st.integers(1, length))
    sigmas = shifted_sigmas(length, shift)
    found = with_tail(sigmas, first, num_steps)
    assert torch.equal(found[: first + 1], sigmas[: first + 1])
    u = torch.linspace(1 - first / length, 0, num_steps + 1)
    torch.testing.assert_close(
        found[first:], shift * u / (1 + (shift - 1) * u), rtol=1e-4, atol=1e-5
    )
    torch.testing.assert_close(with_tail(sigmas, first, length - first), sigmas)


@pytest.mark.parametrize("family", ["flux", "sd3", "qwen_image", "wan"])
def test_tails_of_the_families_schedules_fall_to_nothing(tiny_families, family):
    sigmas = load(tiny_families[family], family=family).sigmas(10)
    torch.testing.assert_close(with_tail(sigmas, 4, 6), sigmas)
    found = with_tail(sigmas, 4, 3)
    assert (found.diff() < 0).all()
    assert found[-1] == 0
    # a half of the steps: each of their levels is one that the schedule has, too
    torch.testing.assert_close(with_tail(sigmas, 4, 3)[4:], sigmas[4::2])


@pytest.mark.parametrize(("first", "num_steps"), [(0, 2), (4, 2), (2, 0)])
def test_tails_that_cannot_be_are_refused(first, num_steps):
    with pytest.raises(ValueError, match="needs 1 <= first < 4 and at least one step"):
        with_tail(shifted_sigmas(4, 1.0), first, num_steps)
