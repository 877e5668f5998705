"""Parts: values of which each member of a gang holds its own part, such as a sum of gradients.

The leader's part is an ordinary value. Sent to the other members, as an argument of what they do
together, it arrives as their own part; let go of, it lets go of theirs.
"""

import io
import pickle
from typing import Any
from weakref import finalize


class Part:
    """The base of such values. A part has a key from when its gang has made it."""

    part_key: int | None = None


class Held:
    """The parts that a member of a gang holds, by key."""

    def __init__(self) -> None:
        self._parts: dict[int, Part] = {}
        self._dropped: list[int] = []

    def __getitem__(self, key: int) -> Part:
        return self._parts[key]

    def mark(self, key: int, value: object) -> None:
        """Note, on the leader, what the members made, and by whom it is held."""
        if isinstance(value, Part) and value.part_key is None:
            value.part_key = key
            finalize(value, self._dropped.append, key)

    def keep(self, key: int, value: object) -> None:
        """Hold, on a follower, its part of what the members made."""
        if isinstance(value, Part) and value.part_key is None:
            value.part_key = key
            self._parts[key] = value

    def drop(self, keys: tuple[int, ...]) -> None:
        """Let go of parts that the leader has let go of."""
        for key in keys:
            self._parts.pop(key, None)

    def take_dropped(self) -> tuple[int, ...]:
        """Return the keys of parts that the leader let go of since the last call."""
        found = tuple(self._dropped)
        del self._dropped[: len(found)]  # others may have been added by another thread
        return found


def pickled(value: object) -> bytes:
    """Return a value for other members, in which parts are named by their keys."""
    file = io.BytesIO()
    _Pickler(file, protocol=pickle.HIGHEST_PROTOCOL).dump(value)
    return file.getvalue()


def unpickled(data: bytes, held: Held) -> Any:
    """Return what the leader pickled, with this member's own parts."""
    return _Unpickler(data, held).load()


class _Pickler(pickle.Pickler):
    def persistent_id(self, value: object) -> int | None:
        return value.part_key if isinstance(value, Part) else None


class _Unpickler(pickle.Unpickler):
    def __init__(self, data: bytes, held: Held) -> None:
        super().__init__(io.BytesIO(data))
        self._held = held

    def persistent_load(self, key: int) -> Part:
        return self._held[key]
