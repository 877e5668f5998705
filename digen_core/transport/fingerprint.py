"""Fingerprints: what a parameter holds as one number, which shards of its rows add up.

Rows of a parameter (dim 0) are read as words of 8 bytes, or of the most bytes that divide a row.
Each word is folded, so that flips of two sign bits do not cancel, and weighed by its place:

    fingerprint = sum over words of fold(word) x odd(column) x odd(row), modulo 2^64

Whoever holds some rows computes their share, and shares are added: nothing is gathered. That tells
faults, such as a bit that flipped or rows that were swapped; it protects from nobody who means to
deceive.
"""

import hashlib
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from digen_core.transport.arrays import viewed

_WORDS: Final = {1: np.int8, 2: np.int16, 4: np.int32, 8: np.int64}
_WORDS_AT_ONCE: Final = 1 << 15  # 256 KB, which stay in a core's cache
_FIRST_COLUMN: Final = 1
_FIRST_ROW: Final = 1 << 40  # no row is weighed as a column is
_C1: Final = np.uint64(0x9E3779B97F4A7C15)  # splitmix64's
_C2: Final = np.uint64(0xBF58476D1CE4E5B9)
_HALF: Final = 1 << 63


def fingerprint(array: np.ndarray, first_row: int = 0) -> int:
    """Return the fingerprint of a parameter or of some of its rows, as int64 counts.

    Args:
        array: of any shape and dtype; NaNs differ by their bits.
        first_row: that the array begins with, if it is a shard of a parameter's rows.
    """
    rows, sums = np.atleast_1d(array), [0]
    if not rows.size:
        return 0
    words_of_row = _words(rows[:1]).size
    by_column = _odd(_FIRST_COLUMN, words_of_row)
    rows_at_once = max(1, _WORDS_AT_ONCE // words_of_row)
    for start in range(0, len(rows), rows_at_once):
        words = _words(rows[start : start + rows_at_once])
        by_row = _odd(_FIRST_ROW + first_row + start, len(words))
        sums.append(int(np.einsum("rc,c->r", _folded(words), by_column) @ by_row))
    return total_of(sums)


def total_of(fingerprints: Iterable[int]) -> int:
    """Return the fingerprint of a whole from those of its shards."""
    return (sum(fingerprints) + _HALF) % (2 * _HALF) - _HALF


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
    return Content(str(own.dtype), tuple(own.shape), fingerprint(array, first_row))


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


def _words(rows: np.ndarray) -> np.ndarray:
    """Return rows [r, ...] as uint64 [r, words]; of smaller words the sign is carried on."""
    size = math.gcd(8, rows.nbytes // len(rows))
    flat = np.ascontiguousarray(rows).reshape(len(rows), -1)
    return flat.view(_WORDS[size]).astype(np.int64, copy=False).view(np.uint64)


def _folded(words: np.ndarray) -> np.ndarray:
    """Return word ^ (word >> 29) of each."""
    folded: np.ndarray = words >> np.uint64(29)
    folded ^= words
    return folded


def _odd(first: int, count: int) -> np.ndarray:
    """Return an odd factor for each of some places, uint64: splitmix64's number for it, | 1."""
    z = np.arange(first, first + count, dtype=np.uint64) * _C1
    z = (z ^ (z >> np.uint64(30))) * _C2
    return (z ^ (z >> np.uint64(27))) | np.uint64(1)
