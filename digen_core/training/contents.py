"""Contents: what parameters hold of which each member of a gang has its rows, in few bytes."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch

from digen_core.gang.members import Gang
from digen_core.gang.rows import lengths_of, rows_of
from digen_core.transport.fingerprint import Content, content_of, total_of


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
    totals = _summed([content.fingerprint for content in own.values()], gang)
    return {
        name: replace(content, shape=(lengths[name], *content.shape[1:]), fingerprint=total)
        for (name, content), total in zip(own.items(), totals, strict=True)
    }


def differing(
    contents: Mapping[str, Content], fingerprints: Mapping[str, int], gang: Gang
) -> list[str]:
    """Return the names of parameters that do not hold what they should (collective).

    Args:
        contents: that they should hold, by name.
        fingerprints: of this member's rows of each, as they count in the whole one.
        gang: whose member this process is.
    """
    totals = _summed([fingerprints[name] for name in contents], gang)
    expected = zip(contents.items(), totals, strict=True)
    return [name for (name, content), total in expected if content.fingerprint != total]


def _summed(fingerprints: Sequence[int], gang: Gang) -> list[int]:
    """Return the fingerprints of whole parameters from those of members' rows (collective)."""
    totals = torch.tensor(fingerprints, dtype=torch.int64)
    if gang.size > 1:
        gang.add_up([totals])
    found: list[int] = totals.tolist()
    return found


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
    total = total_of(content.fingerprint for content in contents)
    length = sum(content.shape[0] for content in contents)
    return replace(contents[0], shape=(length, *contents[0].shape[1:]), fingerprint=total)
