"""Contents: what parameters hold of which each member of a gang has its rows, in few bytes."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np
import torch

from digen_core.gang.members import Gang
from digen_core.gang.rows import lengths_of, rows_of
from digen_core.transport.fingerprint import Content, content_of

_HALF: Final = 1 << 63


def contents_of(rows: Mapping[str, np.ndarray], gang: Gang) -> dict[str, Content]:
    """Return what parameters hold of which each member has its rows (collective).

    Args:
        rows: this member's, by name; the same names in the same order on every member.
        gang: whose member this process is.
    """
    lengths = lengths_of(rows, gang)
    own = {name: rows_content(value, lengths[name], gang) for name, value in rows.items()}
    if gang.size == 1:
        return own
    totals = torch.tensor([content.fingerprint for content in own.values()])
    gang.add_up([totals])
    return {
        name: replace(content, shape=(lengths[name], *content.shape[1:]), fingerprint=total)
        for (name, content), total in zip(own.items(), totals.tolist(), strict=True)
    }


def rows_content(value: np.ndarray, length: int, gang: Gang) -> Content:
    """Return what this member's rows of a parameter hold, as they count in the whole one.

    Args:
        value: the rows.
        length: of the whole parameter's first dimension.
        gang: whose member this process is.
    """
    return content_of(value, rows_of(length, gang.rank, gang.size).start)


def added(contents: Sequence[Content]) -> Content:
    """Return what a parameter holds, from what its members' rows hold."""
    if len(contents) == 1:
        return contents[0]
    total = sum(content.fingerprint for content in contents)
    wrapped = (total + _HALF) % (2 * _HALF) - _HALF  # as int64 counts
    length = sum(content.shape[0] for content in contents)
    return replace(contents[0], shape=(length, *contents[0].shape[1:]), fingerprint=wrapped)
