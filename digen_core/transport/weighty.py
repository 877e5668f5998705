"""Values whose bytes are not in their pickles."""

from abc import abstractmethod


class Weighty:
    """The base of such values: of a gradient they are on a GPU, of what is emulated nowhere."""

    __slots__ = ()

    @property
    @abstractmethod
    def num_bytes(self) -> int:
        """Of what is sent."""
