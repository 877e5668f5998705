"""The shelf: a member's rows of what its device holds for other devices to pull.

Rows are found by the hash of the whole that they are of, a version or a sum of gradients, so
nothing else is ever served in its place.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from digen_core.transport.arrays import Weights
from digen_core.transport.delta import packed

AVERAGE: Final = "average"
SUM: Final = "sum"
Label = int | str
"""A version's number, AVERAGE, or of a sum of gradients SUM and its hash: one may be shared again,
with other packs, while a reduction that is void still reads the one before."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Some rows of a parameter, as its member counts them: the first that it keeps is 0."""

    name: str
    first: int
    end: int


class Answer(NamedTuple):
    """Rows as they cross to another worker, or are received there."""

    values: Sequence[np.ndarray | bytes]  # of each piece: as it is, or a delta
    base: str = ""  # hash of what deltas are of

    @property
    def num_bytes(self) -> int:
        """Of what crosses."""
        return sum(own.nbytes if isinstance(own, np.ndarray) else len(own) for own in self.values)


class Shelf:
    """Rows by label and by hash. The event loop reads while a task changes it."""

    def __init__(self) -> None:
        self._hashes: dict[Label, str] = {}
        self._rows: dict[str, Weights] = {}

    def __iter__(self) -> Iterator[Label]:
        return iter(tuple(self._hashes))

    def put(self, label: Label, found: str, rows: Weights) -> None:
        """Keep rows in place of what had this label.

        Args:
            label: of what they are of.
            found: hash of the whole, as it was found of these rows: nobody computes it again.
            rows: this member's of each parameter; never changed from now on.
        """
        self._rows[found] = rows
        self._hashes[label] = found
        self._forget()

    def drop(self, label: Label) -> None:
        """Let go of what has a label, if anything has."""
        self._hashes.pop(label, None)
        self._forget()

    def drop_sums(self) -> None:
        """Let go of all sums."""
        for label in self:
            if isinstance(label, str) and label.startswith(SUM):
                self.drop(label)

    def _forget(self) -> None:
        kept = set(self._hashes.values())
        self._rows = {found: rows for found, rows in self._rows.items() if found in kept}

    def rows(self, wanted: str) -> Weights | None:
        """Return this member's rows of what has a hash; None: they are not here."""
        return self._rows.get(wanted)

    @property
    def versions(self) -> list[int]:
        """The versions that are here, the newest first."""
        return sorted((label for label in self if isinstance(label, int)), reverse=True)

    @property
    def bases(self) -> dict[str, Weights]:
        """This member's rows of these versions, by their hashes."""
        found = [self._hashes[version] for version in self.versions]
        return {own: self._rows[own] for own in found}

    def pieces(self, wanted: str, pieces: Sequence[Piece]) -> list[np.ndarray] | None:
        """Return some of this member's rows of what has a hash; None: they are not here."""
        rows: Mapping[str, np.ndarray] | None = self._rows.get(wanted)
        if rows is None:
            return None
        return [np.atleast_1d(rows[piece.name])[piece.first : piece.end] for piece in pieces]

    def answer(
        self, wanted: str, pieces: Sequence[Piece], bases: Sequence[str] = ()
    ) -> Answer | None:
        """Return some of this member's rows as they are sent; None: they are not here.

        Args:
            wanted: hash of the whole.
            pieces: of it.
            bases: hashes of what the receiver holds: of the first that is here too come deltas, but
                of parameters that it has not, as it has no ``start/NAME``.
        """
        values = self.pieces(wanted, pieces)
        if values is None:
            return None
        for base in bases:
            held = self._rows.get(base)
            if held is not None:
                both = zip(pieces, values, strict=True)
                return Answer([_delta(piece, value, held) or value for piece, value in both], base)
        return Answer(values)


def _delta(piece: Piece, value: np.ndarray, base: Weights) -> bytes | None:
    """Return a piece as a delta of a base; None: that lacks it, or the delta is no shorter."""
    if piece.name not in base:
        return None
    return packed(value, np.atleast_1d(base[piece.name])[piece.first : piece.end])
