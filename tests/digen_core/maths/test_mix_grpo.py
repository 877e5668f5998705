"""MixGRPO's windows: never empty, never short, without state; DanceGRPO's random steps.

Recorded windows of the published code are in test_oracles_extras.py.
"""

from itertools import groupby

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given

from digen_core.maths.grpo import squared_log_ratio
from digen_core.maths.windows import mix_grpo_window

DEFAULTS = {
    "num_steps": 6,
    "size": 2,
    "strategy": "progressive",
    "stride": 1,
    "iterations": 3,
    "roll_back": True,
}


def starts(num_iterations: int, **changes) -> list[int]:
    """Return where the window starts at each iteration."""
    windows = [
        mix_grpo_window(
            iteration, **{**DEFAULTS, **changes}, generator=np.random.default_rng([7, iteration])
        )
        for iteration in range(num_iterations)
    ]
    size, num_steps = (changes.get(key, DEFAULTS[key]) for key in ("size", "num_steps"))
    assert all(len(window) == size and window.stop <= num_steps for window in windows)
    return [window.start for window in windows]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 4, 0, 0]),
        ({"roll_back": False}, [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 4, 4, 4]),
        ({"iterations": 1, "stride": 2}, [0, 2, 4, 0, 2, 4, 0]),
        # the last window is moved back, and comes once
        ({"iterations": 1, "stride": 3}, [0, 3, 4, 0, 3, 4, 0]),
        ({"iterations": 1, "stride": 9}, [0, 4, 0, 4]),
        ({"stride": 0}, [0] * 20),
        ({"size": 6, "iterations": 1}, [0] * 4),
        # 4 (1 - l/6) + l/6 = 4, 3.5, 3, 2.5, 2
        ({"strategy": "decay", "iterations": 4}, [0] * 4 + [1] * 3 + [2] * 3 + [3] * 2 + [4] * 2),
        (
            {"strategy": "decay", "iterations": 4, "min_iterations": 3, "roll_back": False},
            [0] * 4 + [1] * 3 + [2] * 3 + [3] * 3 + [4] * 9,
        ),
    ],
)
def test_positions_by_hand(changes: dict, expected: list[int]):
    assert starts(len(expected), **changes) == expected


def test_exponential_decay_by_hand():
    # from position 13 on: ceil(4 exp(-0.1 k)) = 4, 4, 4, 3 for k = 0, 1, 2, 3; 1 from k = 14 on
    got = starts(200, num_steps=40, strategy="exp_decay", iterations=4, roll_back=False)
    stays = {start: len(list(run)) for start, run in groupby(got)}
    assert [stays[start] for start in (0, 12, 13, 14, 15, 16, 27)] == [4, 4, 4, 4, 4, 3, 1]


@given(
    st.integers(1, 30),
    st.data(),
    st.sampled_from(["progressive", "decay", "exp_decay", "random"]),
    st.booleans(),
)
def test_every_window_is_whole_and_every_step_is_trained(
    num_steps: int, data, strategy: str, roll_back: bool
):
    size = data.draw(st.integers(1, num_steps))
    stride = data.draw(st.integers(1, size))
    got = starts(
        200 * num_steps if strategy == "random" else 4 * num_steps,
        num_steps=num_steps,
        size=size,
        strategy=strategy,
        stride=stride,
        iterations=data.draw(st.integers(1, 4)) if strategy != "random" else 1,
        roll_back=roll_back,
    )
    trained = {step for start in got for step in range(start, start + size)}
    assert trained == set(range(num_steps))


@given(st.integers(0, 500), st.sampled_from(["progressive", "decay", "exp_decay"]))
def test_a_window_moves_by_at_most_its_stride(iteration: int, strategy: str):
    settings = {**DEFAULTS, "num_steps": 20, "strategy": strategy, "stride": 3}
    before, after = (
        mix_grpo_window(at, **settings, generator=np.random.default_rng(0)).start
        for at in (iteration, iteration + 1)
    )
    assert after - before in range(4) or after == 0


def test_random_windows_are_those_of_the_generator_and_uniform():
    got = starts(3000, strategy="random")
    assert got[:20] == starts(20, strategy="random")
    counts = np.bincount(got)
    assert len(counts) == 5
    assert abs(counts - 600).max() < 110  # 5 standard deviations of a binomial


@pytest.mark.parametrize(
    "changes",
    [
        {"size": 0},
        {"size": 7},
        {"stride": -1},
        {"iterations": 0},
        {"min_iterations": 0},
    ],
)
def test_windows_that_do_not_fit_are_refused(changes: dict):
    with pytest.raises(ValueError, match="needs 1 <= size"):
        mix_grpo_window(0, **{**DEFAULTS, **changes}, generator=np.random.default_rng(0))


def test_an_unknown_strategy_is_refused():
    with pytest.raises(ValueError, match="strategy"):
        starts(1, strategy="slow")


def test_squared_log_ratio_by_hand():
    logprob = torch.tensor([0.3, -0.1], requires_grad=True)
    behaviour = torch.tensor([0.1, -0.1], requires_grad=True)
    got = squared_log_ratio(logprob, behaviour)
    got.sum().backward()
    torch.testing.assert_close(got.detach(), torch.tensor([0.02, 0.0]))
    assert logprob.grad is not None
    torch.testing.assert_close(logprob.grad, torch.tensor([0.2, 0.0]))
    assert behaviour.grad is None
