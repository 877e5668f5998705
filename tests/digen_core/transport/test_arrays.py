"""What travels: exact values, and no array inside an ordinary pickle."""

import pickle

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis.extra.numpy import array_shapes, arrays

from digen_core.config.rollout import RolloutConfig
from digen_core.config.run import RunConfig
from digen_core.config.train import TrainConfig
from digen_core.control.protocol import Fragment
from digen_core.models.trainable import initial_weights
from digen_core.models.versions import versions_of
from digen_core.rollout.rows import Rows
from digen_core.rollout.sampler import denoise, initial_latent
from digen_core.training.gradient_sum import GradientSum, pack_gradient
from digen_core.training.optimizer import optimizer_step
from digen_core.training.pairs import Pairs
from digen_core.training.train_state import initial_state, published
from digen_core.transport.arrays import (
    distance,
    from_stored,
    rounded,
    to_array,
    to_arrays,
    to_stored,
    to_tensor,
    to_tensors,
    viewed,
)
from digen_core.transport.segment import Segment
from support.tiny_policies import load_trainable

CPU = torch.device("cpu")


# --- values -----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_tensors_travel_exactly(dtype):
    # 1/3 is rounded to each dtype first; every bfloat16 and float16 is a float32.
    tensor = torch.tensor([1 / 3, -1e-7, 65504.0, 2.0**-14, 0.0]).to(dtype)
    array = to_array(tensor)
    assert array.dtype == (np.float64 if dtype == torch.float64 else np.float32)
    assert torch.equal(to_tensor(array, CPU).to(dtype), tensor)


def test_every_bfloat16_travels_exactly():
    every = torch.arange(-(2**15), 2**15).to(torch.int16).view(torch.bfloat16)
    every = every[torch.isfinite(every)]
    back = to_tensor(to_array(every), CPU).to(torch.bfloat16)
    assert torch.equal(back.view(torch.int16), every.view(torch.int16))


@given(arrays(np.float32, array_shapes(max_dims=3), elements=st.floats(width=32)))
def test_arrays_come_back_bit_for_bit(array):
    (back,) = to_arrays(to_tensors({"a": array}, CPU)).values()
    np.testing.assert_array_equal(back.view(np.uint32), array.view(np.uint32))


def test_a_tensor_of_a_received_array_is_a_copy_without_a_warning(recwarn):
    array = np.arange(3.0)
    array.flags.writeable = False
    tensor = to_tensor(array, CPU)
    tensor += 1
    assert array.tolist() == [0, 1, 2]
    assert not recwarn.list


@given(
    arrays(np.float32, array_shapes(min_dims=0, max_dims=3), elements=st.floats(-65504, 65504)),
    st.sampled_from([torch.float32, torch.float16, torch.bfloat16]),
)
def test_rounded_weights_are_what_torch_makes_of_the_masters(array, dtype):
    (found,) = rounded({"a": array}, {"a": dtype}).values()
    found.flags.writeable = False
    assert viewed(found).dtype == dtype
    assert torch.equal(viewed(found), torch.tensor(array).to(dtype))


def test_gradients_are_left_behind():
    assert to_array(torch.ones(2, requires_grad=True) * 2).tolist() == [2, 2]


# --- pickles ----------------------------------------------------------------------------------


def in_band(value) -> int:
    """Return the bytes of a pickle that are not handed over as buffers, as Dask makes it."""
    return len(pickle.dumps(value, protocol=5, buffer_callback=lambda buffer: None))


@pytest.fixture(scope="module")
def payloads(tiny_flux) -> dict:
    """All that is big and goes between workers, made by the code that makes it in a run."""
    policy = load_trainable(tiny_flux, "float32", None)
    rollout, samples = RolloutConfig(num_steps=3), range(16)
    sigmas, condition = policy.sigmas(3), policy.encode(["a red circle"])
    x = initial_latent(policy, seed=0, group=(0, 0), samples=samples)
    rows = Rows.of((0, 0), samples)
    done = denoise(
        policy,
        x,
        rows.conditions({(0, 0): condition}),
        sigmas,
        steps=range(3),
        noisy_steps=range(2),
        config=rollout,
        seed=0,
        rows=rows,
    )
    first, *rest = list(done)
    latents = np.stack([to_array(x), to_array(first.x_next), *(to_array(d.x_next) for d in rest)])
    logprobs = {0: to_array(first.logprob)}
    segment = Segment(Fragment(0, 0, 0, 0, 16), 0, latents, logprobs, 0, to_array(sigmas), "")
    pairs = Pairs(
        x=first.x,
        x_next=first.x_next,
        behaviour_logprob=first.logprob,
        advantage=torch.linspace(-1, 1, 16),
        sigma=sigmas[0].expand(16),
        sigma_next=sigmas[1].expand(16),
        sigma_max=float(sigmas[1]),
        condition={name: value.repeat_interleave(16, 0) for name, value in condition.items()},
        is_own=torch.ones(16, dtype=torch.bool),
        is_stale=torch.zeros(16, dtype=torch.bool),
    )
    gradient = GradientSum()
    gradient.add(0, [pack_gradient(policy, pairs, RunConfig(rollout=rollout))])
    state = initial_state(initial_weights(policy, None, seed=0))
    state = optimizer_step(state, gradient.gradient, TrainConfig(), learning_rate=1e-3)
    return {
        "condition": to_arrays(condition),
        "segment": segment,
        "state": state,
        "version": published(state, versions_of(policy).dtypes),
    }


@pytest.mark.parametrize("name", ["condition", "segment", "state", "version"])
def test_no_array_goes_through_an_ordinary_pickle(payloads, name):
    value = payloads[name]
    buffers: list[pickle.PickleBuffer] = []
    data = pickle.dumps(value, protocol=5, buffer_callback=buffers.append)
    back = pickle.loads(data, buffers=buffers)
    if name == "segment":
        assert np.shares_memory(back.latents, value.latents)
    # Names of some 50 parameters, four times in a state, and 150 bytes about each array.
    per_array = 250
    assert in_band(value) < 1000 + per_array * len(buffers)
    assert sum(buffer.raw().nbytes for buffer in buffers) > in_band(value) / 4


def test_in_band_bytes_do_not_grow_with_the_arrays():
    sizes = [
        in_band(
            Segment(Fragment(0, 0, 0, 0, n), 0, np.zeros((4, n, 16, 16)), {}, 0, np.ones(4), "")
        )
        for n in (1, 200)
    ]
    assert sizes[1] < sizes[0] + 50
    # what it would cost otherwise
    assert in_band(np.zeros((200, 16)).tolist()) > 10_000


def test_stored_values_by_hand():
    values = torch.tensor([1.0, -0.15625, 3.0e38])
    assert to_stored(values, "float32").dtype == np.float32
    stored = to_stored(values.bfloat16().float(), "bfloat16")
    assert stored.dtype == np.uint16
    assert stored[0] == 0x3F80  # 1.0: the upper half of float32's bits
    np.testing.assert_array_equal(from_stored(stored), values.bfloat16().float().numpy())
    small = to_stored(torch.tensor([0.5, -2.0]), "float16")
    assert small.dtype == np.float16
    assert from_stored(small).dtype == np.float32
    assert from_stored(small).tolist() == [0.5, -2.0]


@pytest.mark.parametrize(
    ("left", "expected"),
    [
        ({"a": [1.0, -8.0], "b": [2.0]}, 0.0),
        ({"a": [1.0, -6.0], "b": [3.0]}, 2 / 8),
        ({"a": [1.0, np.nan], "b": [2.0]}, np.inf),
        ({"a": [1.0, -8.0]}, np.inf),
    ],
)
def test_distances_of_weights_by_hand(left, expected):
    right = {"a": np.array([1.0, -8.0]), "b": np.array([2.0])}
    assert distance({name: np.array(value) for name, value in left.items()}, right) == expected
