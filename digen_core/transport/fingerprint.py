"""Fingerprints: what a parameter holds as one number, which shards of its rows add up.

Rows of a parameter (dim 0) are read as words of 8 bytes, or of the most bytes that divide a row.
Each word is folded, so that flips of two sign bits do not cancel, and weighed by its place:

    fingerprint = sum over words of fold(word) x odd(column) x odd(row), modulo 2^64

Whoever holds some rows computes their share where they are, and shares are added: nothing is
gathered. That tells faults, such as a bit that flipped or rows that were swapped; it protects from
nobody who means to deceive.
"""

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from torch import Tensor

from digen_core.transport.arrays import viewed

_WORDS: Final = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_WORDS_AT_ONCE: Final = 1 << 18  # 2 MB: little memory beside a parameter, and long enough loops
_FIRST_COLUMN: Final = 1
_FIRST_ROW: Final = 1 << 40  # no row is weighed as a column is
_C1, _C2 = -7046029254386353131, -4658895280553007687  # splitmix64's, as int64


def fingerprint(tensor: Tensor, first_row: int = 0) -> Tensor:
    """Return the fingerprint of a parameter or of some of its rows, int64 [], where the tensor is.

    Args:
        tensor: of any shape and dtype; NaNs differ by their bits.
        first_row: that the tensor begins with, if it is a shard of a parameter's rows.
    """
    total = torch.zeros((), dtype=torch.int64, device=tensor.device)
    if not tensor.numel():
        return total
    rows = tensor.detach().reshape(1) if tensor.ndim == 0 else tensor.detach()
    words_of_row = _words(rows[:1]).numel()
    by_column = _odd(_FIRST_COLUMN, words_of_row, tensor.device)
    rows_at_once = max(1, _WORDS_AT_ONCE // words_of_row)
    for start in range(0, len(rows), rows_at_once):
        words = _words(rows[start : start + rows_at_once])
        by_row = _odd(_FIRST_ROW + first_row + start, len(words), tensor.device)
        total += (_folded(words).mul_(by_column).sum(-1) * by_row).sum()
    return total


@dataclass(frozen=True, slots=True)
class Content:
    """What a parameter holds, in few bytes."""

    dtype: str  # torch's name of it
    shape: tuple[int, ...]
    fingerprint: int


def content_of(array: np.ndarray, first_row: int = 0) -> Content:
    """Return what a parameter holds, or some of its rows as they count in it.

    Args:
        array: of either.
        first_row: that the array begins with.
    """
    own = viewed(array)
    return Content(str(own.dtype), tuple(own.shape), int(fingerprint(own, first_row)))


def content_hash(weights: Mapping[str, np.ndarray]) -> str:
    """Return 16 hex digits that name the content of the weights, whatever their order."""
    return hash_of({name: content_of(array) for name, array in weights.items()})


def hash_of(contents: Mapping[str, Content]) -> str:
    """Return the content hash of parameters, by name."""
    digest = hashlib.blake2b(digest_size=8)
    for name in sorted(contents):
        own = contents[name]
        digest.update(repr((name, own.dtype, own.shape, own.fingerprint)).encode())
    return digest.hexdigest()


def _words(rows: Tensor) -> Tensor:
    """Return rows [r, ...] as int64 [r, words]."""
    flat = rows.reshape(-1)
    size = math.gcd(8, flat.nbytes // len(rows))
    if flat.storage_offset() * flat.element_size() % size:  # such words would not be aligned
        flat = flat.clone()
    return flat.view(_WORDS[size]).view(len(rows), -1).to(torch.int64)


def _folded(words: Tensor) -> Tensor:
    """Return word ^ (word >> 29) of each, where zeros are shifted in."""
    return (words >> 29).bitwise_and_((1 << 35) - 1).bitwise_xor_(words)


def _odd(first: int, count: int, device: torch.device) -> Tensor:
    """Return an odd factor for each of ``count`` places, int64: splitmix64's number for it, | 1."""
    z = torch.arange(first, first + count, device=device) * _C1
    z = (z ^ (z >> 30 & (1 << 34) - 1)) * _C2
    return (z ^ (z >> 27 & (1 << 37) - 1)) | 1
