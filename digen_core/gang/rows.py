"""Rows: which part of every parameter a member of a gang keeps, of the state and of what is pushed.

Rows (dim 0) are dealt in chunks, as FSDP2 deals those of sharded weights: with c = ceil(length /
size), member r has rows [r c, (r + 1) c). The last members may have none.
"""

from collections.abc import Collection, Iterator, Mapping
from typing import TypeVar

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from digen_core.gang.members import Gang

Value = TypeVar("Value", np.ndarray, Tensor)


def rows_of(length: int, rank: int, size: int) -> slice:
    """Return which of a parameter's rows a member keeps.

    Args:
        length: of the parameter's first dimension.
        rank: of the member.
        size: of the gang.
    """
    chunk = -(-length // size)
    return slice(min(rank * chunk, length), min((rank + 1) * chunk, length))


def own_rows(value: Value, gang: Gang) -> Value:
    """Return a member's rows of a whole parameter; alone, all of it."""
    return value if gang.size == 1 else value[rows_of(len(value), gang.rank, gang.size)]


def overlaps(wanted: slice, length: int, size: int) -> Iterator[tuple[int, slice]]:
    """Yield which members of a gang keep some wanted rows of a parameter, and which of them.

    Args:
        wanted: rows, in order.
        length: of the parameter's first dimension.
        size: of the gang.
    """
    for rank in range(size):
        kept = rows_of(length, rank, size)
        first, end = max(kept.start, wanted.start), min(kept.stop, wanted.stop)
        if first < end:
            yield rank, slice(first, end)


def whole_weights(
    rows: Mapping[str, np.ndarray], gang: Gang, kept: Collection[str] | None = None
) -> dict[str, np.ndarray]:
    """Return whole parameters of which each member has its rows, on every member (collective).

    Args:
        rows: this member's.
        gang: whose member this process is.
        kept: names of what this member asks for; None: all of them.
    """
    if gang.size == 1:
        return dict(rows)
    found = {}
    for name, length in lengths_of(rows, gang).items():
        value = _whole(rows[name], length, gang)
        if kept is None or name in kept:
            found[name] = value
    return found


def gathered_weights(rows: Mapping[str, np.ndarray], gang: Gang) -> dict[str, np.ndarray]:
    """Return `whole_weights` on the leader, and nothing on the others (collective)."""
    return whole_weights(rows, gang, None if gang.is_leader else ())


def lengths_of(rows: Mapping[str, np.ndarray], gang: Gang) -> dict[str, int]:
    """Return the numbers of rows of whole parameters (collective)."""
    lengths = torch.tensor([len(np.atleast_1d(own)) for own in rows.values()], dtype=torch.int64)
    if gang.size > 1:
        gang.add_up([lengths])
    return dict(zip(rows, lengths.tolist(), strict=True))


def _whole(own: np.ndarray, length: int, gang: Gang) -> np.ndarray:
    """Return all rows of a parameter; members with fewer fill up, as all send as many bytes."""
    chunk = -(-length // gang.size)
    filled = np.zeros((chunk, *own.shape[1:]), own.dtype)
    filled[: len(own)] = own
    found = np.empty((gang.size * chunk, *own.shape[1:]), own.dtype)
    sent = torch.from_numpy(filled).view(torch.uint8).reshape(-1)
    parts = torch.from_numpy(found).view(torch.uint8).reshape(gang.size, -1)
    if sent.numel():
        dist.all_gather(list(parts), sent)
    return found[:length]
