"""Deltas: the difference of two arrays of one shape and dtype, in fewer bytes and without loss.

An optimizer's step moves a weight of bfloat16 by a bit or not at all. So the bit patterns, read as
integers, are subtracted, small differences of either sign are made small numbers (0, -1, 1, -2, ..
become 0, 1, 2, 3, ..), and these are taken apart into planes, the lowest byte of all first, which
zstd then packs.
"""

from typing import Final

import numpy as np
import pyarrow as pa

_CODEC: Final = pa.Codec("zstd", compression_level=1)  # higher ones take longer and gain nothing


def packed(value: np.ndarray, base: np.ndarray) -> bytes | None:
    """Return what makes a value of a base; None: it would be no smaller than the value.

    Args:
        value: of numbers of 2, 4 or 8 bytes.
        base: of the same shape and dtype.
    """
    found: bytes = _CODEC.compress(_planes(_folded(_words(value) - _words(base))), asbytes=True)
    return found if len(found) < value.nbytes else None


def unpacked(delta: bytes, base: np.ndarray) -> np.ndarray:
    """Return the value of which a delta was packed with this base.

    A delta that was damaged on the way, or is of another base, may make another value.

    Args:
        delta: as `packed` returned it.
        base: as it was given.

    Raises:
        ValueError: it is no such delta.
    """
    words = _words(base)
    try:
        found = _CODEC.decompress(delta, decompressed_size=base.nbytes)
    except OSError as error:
        raise ValueError(f"a delta of {len(delta)} bytes cannot be unpacked: {error}") from error
    planes = np.frombuffer(found, np.uint8).reshape(words.itemsize, words.size)
    value = _unfolded(_joined(planes, words.dtype))
    value += words
    return value.view(base.dtype).reshape(base.shape)


def _words(array: np.ndarray) -> np.ndarray:
    """Return the bit patterns of numbers, [n] unsigned."""
    flat: np.ndarray = np.ascontiguousarray(array).reshape(-1)
    return flat.view(f"u{array.itemsize}")


def _folded(words: np.ndarray) -> np.ndarray:
    """Return differences modulo 2^bits [n] with those near zero, of either sign, as the smallest.

    The memory of the words is used for that.
    """
    signed = words.view(f"i{words.itemsize}")
    signs = signed >> (8 * words.itemsize - 1)
    signed <<= 1
    signed ^= signs
    return words


def _unfolded(words: np.ndarray) -> np.ndarray:
    """Return what was folded; the reverse of `_folded`."""
    signs = -(words & 1)
    words >>= 1
    words ^= signs
    return words


def _planes(words: np.ndarray) -> np.ndarray:
    """Return bytes [itemsize, n]: the lowest of each word, then the next ones."""
    planes = np.empty((words.itemsize, words.size), np.uint8)
    for place, plane in enumerate(planes):
        np.right_shift(words, 8 * place, out=plane, casting="unsafe")
    return planes


def _joined(planes: np.ndarray, dtype: np.dtype[np.unsignedinteger]) -> np.ndarray:
    """Return the words of which these are the bytes; the reverse of `_planes`."""
    words: np.ndarray = planes[-1].astype(dtype)
    for plane in planes[-2::-1]:
        words <<= 8
        words |= plane
    return words
