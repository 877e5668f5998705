"""Fingerprints: shards add up, and every fault that was thought of changes the hash."""

from itertools import pairwise

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import assume, given

from digen_core.transport import fingerprint as fingerprints
from digen_core.transport.fingerprint import Content, content_hash, hash_of, total_of

WEIGHTS = {"a": np.arange(6.0).reshape(2, 3), "b": np.array([-1.0, 0.5])}
MODULUS = 1 << 64
DTYPES = [
    torch.float64,
    torch.float32,
    torch.bfloat16,
    torch.float16,
    torch.int64,
    torch.int32,
    torch.uint8,
    torch.bool,
]


def tensor_of(shape, dtype=torch.float32, seed=0):
    values = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return (100 * values).to(dtype)


def fingerprint(tensor, first_row=0):
    """Of the array in a tensor's memory."""
    half = tensor.dtype == torch.bfloat16
    array = (tensor.view(torch.int16) if half else tensor).numpy()
    return fingerprints.fingerprint(array, first_row)


def hash_of_one(tensor):
    return hash_of({"a": Content(str(tensor.dtype), tuple(tensor.shape), fingerprint(tensor))})


# --- values -----------------------------------------------------------------------------------


def splitmix(place: int) -> int:
    z = place * 0x9E3779B97F4A7C15 % MODULUS
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 % MODULUS
    return (z ^ z >> 27) | 1


def by_hand(rows: list[list[int]]) -> int:
    """The sum of the definition, in Python's own numbers."""
    return (
        sum(
            (word ^ word >> 29) * splitmix(1 + column) * splitmix(2**40 + row)
            for row, words in enumerate(rows)
            for column, word in enumerate(words)
        )
        % MODULUS
    )


def test_the_sum_by_hand():
    words = [[1, 2**63, 2**62 + 5], [7, 0, 2**64 - 1]]
    tensor = torch.tensor(np.array(words, dtype=np.uint64).view(np.int64))
    assert fingerprint(tensor) % MODULUS == by_hand(words)


def test_rows_of_other_sizes_are_words_of_fewer_bytes():
    # 12 bytes: words of 4; a word's sign is carried on to 8 bytes
    tensor = torch.tensor([[1, -1, 3], [2**31 - 1, -(2**31), 0]], dtype=torch.int32)
    rows = [[value % MODULUS for value in row] for row in tensor.tolist()]
    assert fingerprint(tensor) % MODULUS == by_hand(rows)


def test_half_precision_is_read_in_words_of_eight_bytes():
    bits = torch.tensor([[0x3F80, 0, 0, 1], [0, 0x4000, 0, 0]], dtype=torch.int16)
    words = [[0x3F80 | 1 << 48], [0x4000 << 16]]
    assert fingerprint(bits.view(torch.bfloat16)) % MODULUS == by_hand(words)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    "shape", [(), (1,), (7,), (0,), (0, 3), (3, 0), (3, 5), (2, 3, 1, 4)], ids=str
)
def test_any_shape_and_dtype_has_a_fingerprint(shape, dtype):
    found = fingerprint(tensor_of(shape, dtype))
    assert -(1 << 63) <= found < 1 << 63
    assert (found == 0) == (not tensor_of(shape, dtype).any())


def test_arrays_are_read_where_they_are(recwarn):
    array = np.arange(8, dtype=np.float32).reshape(2, 4)
    array.flags.writeable = False
    assert content_hash({"a": array}) == hash_of_one(torch.tensor(array))
    assert not recwarn.list


# --- shards -----------------------------------------------------------------------------------


@given(
    num_rows=st.integers(1, 40),
    rest=st.sampled_from([(), (1,), (3,), (8,), (5, 2)]),
    dtype=st.sampled_from(DTYPES),
    cuts=st.lists(st.integers(0, 40), max_size=6),
)
def test_the_fingerprints_of_shards_add_up(num_rows, rest, dtype, cuts):
    whole = tensor_of((num_rows, *rest), dtype)
    edges = sorted({0, num_rows, *(min(cut, num_rows) for cut in cuts)})
    edges.insert(1, 0)  # a member without rows
    parts = [fingerprint(whole[start:end].clone(), start) for start, end in pairwise(edges)]
    assert total_of(parts) == fingerprint(whole)


def test_parts_of_a_large_parameter_add_up():
    whole = tensor_of((1500, 1000), torch.bfloat16)  # more than is read at once
    parts = [
        fingerprint(part, start)
        for start, part in zip((0, 777), whole.split([777, 723]), strict=True)
    ]
    assert total_of(parts) == fingerprint(whole)


@given(st.sampled_from(DTYPES), st.integers(0, 3), st.integers(1, 4), st.integers(1, 2))
def test_memory_layout_does_not_matter(dtype, first, count, stride):
    base = tensor_of((9, 8), dtype)
    for view in (base.T[first : first + count], base[first::stride, :4], base.flatten()[first:]):
        assert fingerprint(view) == fingerprint(view.clone())


# --- faults -----------------------------------------------------------------------------------


@given(st.data(), st.sampled_from([torch.float32, torch.bfloat16]), st.booleans())
def test_any_bit_changes_the_hash(data, dtype, wide):
    tensor = tensor_of((6, 8 if wide else 3), dtype)
    bits = tensor.view({2: torch.int16, 4: torch.int32}[tensor.itemsize]).flatten()
    before, place = hash_of_one(tensor), data.draw(st.integers(0, len(bits) - 1))
    width = 8 * tensor.itemsize
    bit = data.draw(st.integers(0, width - 1))
    bits[place] ^= -(1 << bit) if bit == width - 1 else 1 << bit
    assert hash_of_one(tensor) != before


def test_any_two_signs_change_the_hash():
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        tensor = tensor_of((4, 16), dtype)
        flat, found = tensor.view(-1), {hash_of_one(tensor)}
        pairs = [(i, j) for i in range(len(flat)) for j in range(i)]
        for pair in pairs:
            flat[list(pair)] *= -1
            found.add(hash_of_one(tensor))
            flat[list(pair)] *= -1
        assert len(found) == len(pairs) + 1


@given(st.data())
def test_elements_and_rows_that_were_swapped_change_the_hash(data):
    tensor, place = tensor_of((5, 7)), st.integers(0, 34)
    one, other = data.draw(place), data.draw(place)
    assume(one != other)
    swapped = tensor.clone()
    swapped.view(-1)[[one, other]] = tensor.view(-1)[[other, one]]
    assert hash_of_one(swapped) != hash_of_one(tensor)
    rows = torch.arange(5)
    rows[[one // 7, other // 7]] = rows[[other // 7, one // 7]]
    if one // 7 != other // 7:
        assert hash_of_one(tensor[rows]) != hash_of_one(tensor)


def test_nans_differ_by_their_bits():
    bits = torch.tensor([[0x7FC00000, 0x7FC00001]], dtype=torch.int32)
    assert hash_of_one(bits[:, :1].view(torch.float32)) != hash_of_one(
        bits[:, 1:].view(torch.float32)
    )
    assert hash_of_one(bits.view(torch.float32)) == hash_of_one(bits.clone().view(torch.float32))


def test_the_same_bytes_of_another_dtype_or_shape_are_other_weights():
    tensor = tensor_of((4, 4))
    others = [
        tensor.view(torch.int32),
        tensor.view(2, 8),
        tensor.view(4, 2, 2),
        tensor.T.contiguous(),
    ]
    assert fingerprint(others[0]) == fingerprint(tensor)  # only the hash tells
    assert len({hash_of_one(other) for other in (tensor, *others)}) == 5
    zeros = {hash_of_one(torch.zeros(shape)) for shape in [(), (1,), (2,), (2, 3), (3, 2), (0,)]}
    assert len(zeros) == 6


def test_the_hash_does_not_depend_on_order_or_memory_layout():
    found = content_hash(WEIGHTS)
    assert len(found) == 16
    assert content_hash(dict(reversed(WEIGHTS.items()))) == found
    assert content_hash({**WEIGHTS, "a": np.asfortranarray(WEIGHTS["a"])}) == found
    assert content_hash({name: value.copy() for name, value in WEIGHTS.items()}) == found


@pytest.mark.parametrize(
    "other",
    [
        {**WEIGHTS, "a": WEIGHTS["a"] + np.eye(2, 3) * 1e-15},
        {**WEIGHTS, "b": np.array([0.5, -1.0])},
        {**WEIGHTS, "b": WEIGHTS["b"].astype(np.float32)},
        {**WEIGHTS, "a": WEIGHTS["a"].reshape(3, 2)},
        {"a": WEIGHTS["a"], "c": WEIGHTS["b"]},
        {"a": WEIGHTS["b"], "b": WEIGHTS["a"]},
        {"a": WEIGHTS["a"]},
        {**WEIGHTS, "b": -WEIGHTS["b"]},
        {},
    ],
    ids=["value", "order", "dtype", "shape", "name", "swapped names", "fewer", "signs", "nothing"],
)
def test_the_hash_depends_on(other):
    assert content_hash(other) != content_hash(WEIGHTS)
