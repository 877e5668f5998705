"""Yes-no questions about a sample, made of the kind of its prompt and what its row holds.

Kinds are dimensions of VBench (https://arxiv.org/abs/2311.17982), whose rows say in
``auxiliary_info`` what a detector is to find, and categories of T2I-CompBench
(https://arxiv.org/abs/2307.06350), whose rows carry noun phrases. What is asked of things depends
on the question whether they are there.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

from digen_core.data.kinds import JUDGED, kinds_of, text_at
from digen_core.inputs.reading import shown
from digen_core.rewards.blip.phrases import phrases_of
from digen_core.rewards.dpg.questions import Question

Row = Mapping[str, Any]

KINDS: Final = JUDGED["judged_kinds"]
"""By column the kinds about which something is asked."""

_ARTICLES: Final = frozenset(("a", "an", "the"))
_PLACES: Final = ("the top", "the bottom", "side", "front")  # noun phrases, but of no thing


def kind_of(row: Row) -> tuple[str, str] | None:
    """Return the column and the kind that a prompt is asked about; None if it is of no such kind.

    Raises:
        ValueError: it is of several.
    """
    found = [
        (column, kind)
        for column, kinds in KINDS.items()
        for kind in kinds
        if kind in kinds_of(row, column)
    ]
    if len(found) > 1:
        names = " and ".join(shown(kind) for _, kind in found)
        raise ValueError(f"it is of the kinds {names}, and questions are of one; keep one of them")
    return found[0] if found else None


def questions_of(prompt: str, row: Row) -> list[Question]:
    """Return what is asked about samples of a prompt; nothing if it is of no kind of ``KINDS``.

    Raises:
        ValueError: it is of several kinds, or its row does not hold what its kind is asked by.
    """
    found = kind_of(row)
    if found is None:
        return []
    column, kind = found
    things, last = _ASKED[column][kind](prompt, row)
    texts = [*things, *([last] if last else [])]
    return [
        Question(number, (), "entity", text)
        if number <= len(things)
        else Question(number, tuple(range(1, number)), "relation", text)
        for number, text in enumerate(texts, 1)
    ]


def all_or_nothing(row: Row) -> bool:
    """Say whether a sample is right only if all answers are yes, as VBench's detectors have it."""
    found = kind_of(row)
    return found is not None and found[0] == "dimension"


Texts = tuple[list[str], str | None]
"""Questions about things, and one that depends on all of those."""


def _text(row: Row, place: str) -> str:
    found = text_at(row, f"auxiliary_info.{place}")
    if found is None:
        raise ValueError(f"its 'auxiliary_info' has no {place!r}; the text must stand there")
    return found.strip()


def _is_there(thing: str) -> str:
    return f"Can this be seen: {thing}?"


def _object_class(prompt: str, row: Row) -> Texts:
    return [_is_there(_text(row, "object_class.object"))], None


def _multiple_objects(prompt: str, row: Row) -> Texts:
    both = _text(row, "multiple_objects.object")
    things = [thing.strip() for thing in both.split(" and ")]
    if len(things) < 2 or not all(things):
        raise ValueError(f"its 'multiple_objects.object' is {shown(both)}; write as 'cat and dog'")
    return [_is_there(thing) for thing in things], None


def _color(prompt: str, row: Row) -> Texts:
    color = _text(row, "color.color")
    left_out = {*_ARTICLES, *color.lower().split()}
    thing = " ".join(word for word in prompt.split() if word.lower() not in left_out)
    if not thing or thing == prompt:
        raise ValueError(f"its prompt {shown(prompt)} names nothing of the color {shown(color)}")
    return [_is_there(thing)], f"Is this {color}: {thing}?"


def _spatial_relationship(prompt: str, row: Row) -> Texts:
    place = "spatial_relationship.spatial_relationship"
    names = ("object_a", "relationship", "object_b")
    first, relation, second = (_text(row, f"{place}.{name}") for name in names)
    last = f"Is this where things are: {first} {relation} {second}?"
    return [_is_there(first), _is_there(second)], last


def _scene(prompt: str, row: Row) -> Texts:
    return [f"Is this the scene: {_text(row, 'scene.scene.scene')}?"], None


def _human_action(prompt: str, row: Row) -> Texts:
    return [f"Is this what happens: {_sentence(prompt)}?"], None


def _described(question: str) -> Callable[[str, Row], Texts]:
    """Return what asks whether things are there, and then about the whole prompt."""

    def asked(prompt: str, row: Row) -> Texts:
        things = [_is_there(phrase) for phrase in phrases_of(row) if phrase not in _PLACES]
        return things, f"{question}: {_sentence(prompt)}?"

    return asked


def _numeracy(prompt: str, row: Row) -> Texts:
    phrases = phrases_of(row)
    if not phrases:
        raise ValueError("its 'phrases' are none; they must say how many there are of what")
    return [f"Are there exactly so many: {phrase}?" for phrase in phrases], None


def _sentence(prompt: str) -> str:
    return prompt.strip().rstrip(".")


_WHERE: Final = "Is this where things are"
_ASKED: Final[Mapping[str, Mapping[str, Callable[[str, Row], Texts]]]] = {
    "dimension": {
        "object_class": _object_class,
        "multiple_objects": _multiple_objects,
        "human_action": _human_action,
        "color": _color,
        "spatial_relationship": _spatial_relationship,
        "scene": _scene,
    },
    "category": {
        "spatial": _described(_WHERE),
        "3d_spatial": _described(_WHERE),
        "numeracy": _numeracy,
        "complex": _described("Is this what can be seen"),
    },
}
