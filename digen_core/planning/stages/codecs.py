"""Codecs as planning knows them: how much smaller what crosses a cut becomes."""

from typing import Final, NamedTuple


class Codec(NamedTuple):
    """How streams and their gradients are sent across a cut."""

    name: str
    there: float  # times as small as in bfloat16, of the streams
    back: float  # the same, of their gradients

    @property
    def forward(self) -> str:
        """The codec of streams, as in ``model.cuts``."""
        return self.name.partition("/")[0]

    @property
    def backward(self) -> str:
        """The codec of their gradients."""
        return self.name.rpartition("/")[2]


NONE: Final = Codec("none", 1.0, 1.0)
INT8: Final = Codec("int8", 2.0, 2.0)
INT8_INT4: Final = Codec("int8/int4", 2.0, 3.6)
"""Of groups of 32 numbers a scale is sent, too: 3.6, not 4."""

CODECS: Final = (NONE, INT8, INT8_INT4)
"""The mildest first."""
