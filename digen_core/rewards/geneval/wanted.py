"""What a prompt of GenEval asks for: its row of ``evaluation_metadata.jsonl``."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from digen_core.inputs.reading import shown

COLOURS: Final = (
    *("red", "orange", "yellow", "green", "blue"),
    *("purple", "pink", "brown", "black", "white"),
)
RELATIONS: Final = ("left of", "right of", "above", "below")

_MOST: Final = 100  # objects of a class, classes of a prompt


@dataclass(frozen=True, slots=True)
class Clause:
    """Objects of a class that are to be in the image, or not so many of them."""

    name: str  # of the class
    count: int
    colour: str | None = None
    position: tuple[str, int] | None = None  # a relation, and which clause it is to


@dataclass(frozen=True, slots=True)
class Wanted:
    """What an image is to show."""

    tag: str  # of the task
    include: tuple[Clause, ...]
    exclude: tuple[Clause, ...] = ()

    @property
    def names(self) -> set[str]:
        """Classes that it names."""
        return {clause.name for clause in (*self.include, *self.exclude)}


def wanted_of(metadata: Mapping[str, Any]) -> Wanted:
    """Return what a prompt's row asks for.

    Raises:
        ValueError: it is none of GenEval's.
    """
    tag, include = metadata.get("tag"), metadata.get("include")
    if not isinstance(tag, str) or not tag:
        raise ValueError(f"its 'tag' is {shown(tag)}; it is the name of a task, as in counting")
    if not include:
        raise ValueError("its 'include' names no object")
    return Wanted(
        tag,
        _clauses("include", include),
        _clauses("exclude", metadata.get("exclude") or []),
    )


def _clauses(key: str, rows: object) -> tuple[Clause, ...]:
    if not isinstance(rows, Sequence) or isinstance(rows, str) or len(rows) > _MOST:
        raise ValueError(f"its {key!r} is {shown(rows)}, not a list of at most {_MOST} objects")
    return tuple(_clause(key, place, row) for place, row in enumerate(rows))


def _clause(key: str, place: int, row: object) -> Clause:
    what = f"number {place + 1} of its {key!r} is {shown(row)}"
    if not isinstance(row, Mapping) or not isinstance(row.get("class"), str):
        raise ValueError(f'{what}; write an object, as in {{"class": "clock", "count": 2}}')
    count, colour = row.get("count"), row.get("color")
    if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= _MOST:
        raise ValueError(f"{what}; its count is to be from 1 to {_MOST}")
    if colour is not None and colour not in COLOURS:
        raise ValueError(f"{what}; its color is to be one of {', '.join(COLOURS)}")
    return Clause(row["class"], count, colour, _position(what, place, row.get("position")))


def _position(what: str, place: int, value: object) -> tuple[str, int] | None:
    if value is None:
        return None
    if isinstance(value, Sequence) and len(value) == 2:
        relation, target = value
        is_place = isinstance(target, int) and not isinstance(target, bool)
        if relation in RELATIONS and is_place and 0 <= target < place:
            return relation, target
    raise ValueError(
        f"{what}; its position is to be one of {', '.join(RELATIONS)} and the number, from 0, of "
        "an object before it"
    )
