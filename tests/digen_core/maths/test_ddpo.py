"""DDPO: running statistics against deques, the DDIM step against diffusers, values by hand.

Recorded cases of the published code are in test_oracles.py and test_oracles_extras.py.
"""

import json
from collections import deque

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from diffusers import DDIMScheduler
from hypothesis import given

from digen_core.maths.ddpo import ddim_transition, running_advantages
from digen_core.maths.grpo import group_advantages

batches_of = st.lists(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.floats(-10, 10, width=16)), min_size=1, max_size=6
    ),
    min_size=1,
    max_size=5,
)


@given(batches_of, st.integers(1, 6), st.integers(0, 4))
def test_it_remembers_like_a_deque(
    batches: list[list[tuple[str, float]]], min_count: int, room: int
):
    buffer_size = min_count + room
    deques: dict[str, deque[float]] = {}
    history: dict[str, tuple[float, ...]] = {}
    for batch in batches:
        rewards = np.array([reward for _, reward in batch])
        for prompt, reward in batch:
            deques.setdefault(prompt, deque(maxlen=buffer_size)).append(reward)
        got, history = running_advantages(
            torch.as_tensor(rewards),
            [prompt for prompt, _ in batch],
            history,
            buffer_size=buffer_size,
            min_count=min_count,
        )
        for (prompt, reward), advantage in zip(batch, got.tolist(), strict=True):
            known = deques[prompt] if len(deques[prompt]) >= min_count else rewards
            expected = (reward - np.mean(known)) / (np.std(known) + 1e-6)
            assert advantage == pytest.approx(expected, rel=1e-6, abs=1e-6)
        assert history == {prompt: tuple(values) for prompt, values in deques.items()}
        history = {  # it survives a checkpoint
            prompt: tuple(values) for prompt, values in json.loads(json.dumps(history)).items()
        }


def test_by_hand():
    before = {"a": (1.0, 5.0), "b": (2.0,)}
    got, after = running_advantages(
        torch.tensor([6.0, 4.0]), ["a", "b"], before, buffer_size=2, min_count=2, eps=0.5
    )
    # a: 5, 6 (the 1 is forgotten); b: 2, 4
    assert got.dtype == torch.float64
    assert got.tolist() == pytest.approx([0.5 / 1.0, 1 / 1.5])
    assert after == {"a": (5.0, 6.0), "b": (2.0, 4.0)}
    assert before == {"a": (1.0, 5.0), "b": (2.0,)}
    # too few of each: the batch 6, 4 counts
    got, _ = running_advantages(
        torch.tensor([6.0, 4.0]), ["a", "b"], {}, buffer_size=2, min_count=2, eps=0.0
    )
    assert got.tolist() == pytest.approx([1, -1])


@given(st.lists(st.floats(-10, 10, width=16), min_size=6, max_size=6))
def test_without_memory_it_is_the_advantage_of_the_group(values: list[float]):
    rewards, group_index = torch.tensor(values, dtype=torch.float64), torch.arange(6) // 3
    got, _ = running_advantages(rewards, list("aaabbb"), {}, buffer_size=3, min_count=3, eps=1.0)
    torch.testing.assert_close(got, group_advantages(rewards, group_index, eps=1.0))


def test_bad_rewards_are_refused():
    with pytest.raises(ValueError, match="reward 1 of prompt 'b' is nan"):
        running_advantages(
            torch.tensor([1.0, torch.nan]), ["a", "b"], {}, buffer_size=2, min_count=1
        )
    with pytest.raises(ValueError, match="one reward per prompt"):
        running_advantages(torch.ones(2), ["a"], {}, buffer_size=2, min_count=1)
    with pytest.raises(ValueError, match="min_count 3"):
        running_advantages(torch.ones(1), ["a"], {}, buffer_size=2, min_count=3)


# --- the DDIM step


@pytest.mark.parametrize("eta", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("index", [0, 5, 8])
def test_it_is_the_step_of_diffusers(eta: float, index: int):
    scheduler = DDIMScheduler(beta_schedule="scaled_linear", clip_sample=False)
    scheduler.set_timesteps(10)
    timestep = scheduler.timesteps[index]
    torch.manual_seed(0)
    x, predicted, noise = torch.randn(3, 2, 4, 3, 5)
    alphas = scheduler.alphas_cumprod
    step = ddim_transition(x, predicted, alphas[timestep], alphas[timestep - 100], eta=eta)
    expected = scheduler.step(predicted, timestep, x, eta=eta, variance_noise=noise).prev_sample
    torch.testing.assert_close(step.mean + step.std * noise, expected, rtol=1e-5, atol=1e-5)


def test_the_ddim_step_by_hand():
    # alpha 0.36 to 0.64: x_0 = (1 - 0.8 * 0.5) / 0.6 = 1; variance 0.36 / 0.64 * (1 - 0.5625)
    one = torch.ones(1, 1, dtype=torch.float64)
    step = ddim_transition(one, 0.5 * one, 0.36, 0.64, eta=1.0)
    variance = 0.5625 * 0.4375
    assert step.std.item() == pytest.approx(variance**0.5)
    assert step.mean.item() == pytest.approx(0.8 + 0.5 * (0.36 - variance) ** 0.5)


@pytest.mark.parametrize(("alpha", "alpha_next"), [(0.5, 0.4), (0.0, 0.5), (0.5, 1.1)])
def test_steps_that_do_not_denoise_are_refused(alpha: float, alpha_next: float):
    with pytest.raises(ValueError, match="from alpha"):
        ddim_transition(torch.ones(2, 3), torch.ones(2, 3), alpha, alpha_next, eta=1.0)
    with pytest.raises(ValueError, match="one shape"):
        ddim_transition(torch.ones(2, 3), torch.ones(1, 3), 0.4, 0.5, eta=1.0)
