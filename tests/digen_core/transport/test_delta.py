"""Deltas: nothing is lost, whatever the bits; a small step of bfloat16 weights is a few percent."""

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis.extra import numpy as hnp

from digen_core.transport.arrays import rounded
from digen_core.transport.delta import packed, unpacked

DTYPES = [np.uint16, np.float16, np.float32, np.float64]


def bits_of(shape, dtype, seed=0):
    """Any bits: NaNs and infinities, too."""
    size = np.prod(shape, dtype=int) * np.dtype(dtype).itemsize
    return np.random.default_rng(seed).integers(0, 256, size, np.uint8).view(dtype).reshape(shape)


@st.composite
def pairs(draw):
    """Two arrays of the same shape and dtype, of any bits, alike in some places."""
    dtype = np.dtype(draw(st.sampled_from(DTYPES)))
    shape = draw(hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=40))
    base = bits_of(shape, dtype, draw(st.integers(0, 9)))
    words = base.reshape(-1).view(f"u{dtype.itemsize}")
    steps = bits_of(words.shape, words.dtype, draw(st.integers(10, 19)))
    steps >>= words.dtype.type(draw(st.integers(0, 8 * dtype.itemsize - 1)))
    return (words + steps).view(dtype).reshape(shape), base


@given(pairs())
def test_what_is_unpacked_has_the_same_bits(pair):
    value, base = pair
    delta = packed(value, base)
    if delta is None:
        return
    assert len(delta) < value.nbytes
    found = unpacked(delta, base)
    assert (found.dtype, found.shape) == (value.dtype, value.shape)
    assert found.tobytes() == value.tobytes()


@pytest.mark.parametrize("dtype", DTYPES)
def test_neighbours_either_way_take_little_and_sources_stay_as_they_are(dtype):
    base = bits_of((300, 7), dtype)
    words = base.reshape(-1).view(f"u{base.itemsize}")
    steps = np.random.default_rng(1).integers(-1, 2, words.size).astype(words.dtype)
    value = (words + steps).view(dtype).reshape(300, 7)
    for array in (value, base):
        array.flags.writeable = False  # as what arrived is
    delta = packed(value, base)
    assert len(delta) < 0.35 * base.size  # of a byte each: log2(3) / 8 = 0.2
    assert unpacked(delta, base).tobytes() == value.tobytes()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (0,), (1,), (300, 7)])
def test_what_would_be_no_smaller_is_not_packed(dtype, shape):
    assert packed(bits_of(shape, dtype, 1), bits_of(shape, dtype, 2)) is None


@pytest.mark.parametrize(
    ("std", "learning_rate", "most"),
    [(0.02, 1e-5, 0.18), (0.02, 1e-6, 0.05), (0.1, 1e-5, 0.08), (0.1, 1e-6, 0.02)],
)
def test_a_step_of_bfloat16_weights(std, learning_rate, most):
    """Every weight moves by the learning rate, as in Adam's first step: no later one is larger."""
    rng = np.random.default_rng(0)
    weights = (std * rng.standard_normal((1000, 1000))).astype(np.float32)
    step = np.float32(learning_rate) * rng.choice(np.float32([-1, 1]), weights.shape)
    versions = {"before": weights, "after": weights + step}
    both = rounded(versions, dict.fromkeys(versions, torch.bfloat16))
    delta = packed(both["after"], both["before"])
    assert 0.5 * most < len(delta) / both["after"].nbytes < most
    assert unpacked(delta, both["before"]).tobytes() == both["after"].tobytes()


def test_a_flipped_bit_is_told_or_makes_other_weights():
    """Fingerprints tell the second; where neither is, the bit meant nothing."""
    base = bits_of((4096,), np.uint16)
    value = base + np.random.default_rng(1).integers(0, 2, base.shape).astype(np.uint16)
    delta, told, other = packed(value, base), 0, 0
    for bit in range(0, 8 * len(delta), 7):
        damaged = bytearray(delta)
        damaged[bit // 8] ^= 1 << bit % 8
        try:
            other += unpacked(bytes(damaged), base).tobytes() != value.tobytes()
        except ValueError:
            told += 1
    num_tried = len(range(0, 8 * len(delta), 7))
    assert told > 0
    assert told + other > 0.95 * num_tried


def test_another_base_makes_other_weights():
    value, base = bits_of((300, 7), np.uint16), bits_of((300, 7), np.uint16) + np.uint16(1)
    assert unpacked(packed(value, base), base + np.uint16(1)).tobytes() != value.tobytes()


@pytest.mark.parametrize(
    "damage",
    [
        lambda delta: b"",
        lambda delta: delta[:-1],
        lambda delta: delta + b"x",
        lambda delta: packed(np.zeros(2 * 2100, np.uint16), np.zeros(2 * 2100, np.uint16)),
    ],
    ids=["empty", "cut off", "more", "of a longer array"],
)
def test_what_is_no_delta_is_told(damage):
    base = bits_of((300, 7), np.uint16)
    delta = packed(base + np.uint16(1), base)
    with pytest.raises(ValueError, match=r"^a delta of \d+ bytes cannot be unpacked: \w+"):
        unpacked(damage(delta), base)


def test_a_delta_of_a_shorter_array_is_told():
    base = bits_of((300, 7), np.uint16)
    with pytest.raises(ValueError, match=r"^a delta of \d+ bytes cannot be unpacked: \w+"):
        unpacked(packed(base[:100], base[:100]), base)
