"""The questions of a prompt, which depend on each other, and the score of their answers.

DPG-Bench (ELLA, https://arxiv.org/abs/2403.05135) asks yes-no questions about each image. One that
depends on another counts as answered no where that one does. As in the published program the
questions are gone through in the order of the rows, so what hangs on a chain of them counts as no,
too, as long as parents come before what depends on them; and a row that repeats the id of another
takes its place.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from digen_core.data.published import DPG_CATEGORIES, DPG_COLUMNS
from digen_core.inputs.reading import listed, shown


@dataclass(frozen=True, slots=True)
class Question:
    """One question of a prompt."""

    number: int  # its proposition_id
    parents: tuple[int, ...]  # numbers of what it depends on
    category: str  # the broad one
    text: str


def questions_of(row: Mapping[str, Any]) -> list[Question]:
    """Return the questions of a prompt's row, whose columns are lists of one value for each.

    Raises:
        ValueError: there are none, one of them is not as DPG-Bench has them, or depends on one that
            there is not.
    """
    columns = [row.get(name) for name in DPG_COLUMNS]
    lists = [value for value in columns if isinstance(value, list) and value]
    if len(lists) < len(columns) or len({len(values) for values in lists}) > 1:
        raise ValueError(
            f"its columns {', '.join(DPG_COLUMNS)} are {', '.join(shown(v, 40) for v in columns)}; "
            "each must be a list of one value for each question, as of DPG-Bench's table"
        )
    found: dict[int, Question] = {}
    for values in zip(*lists, strict=True):
        question = _question(*values)
        found[question.number] = question
    for question in found.values():
        if unknown := [own for own in question.parents if own not in found]:
            raise ValueError(
                f"its question {question.number} depends on {unknown[0]}, which is none of its "
                f"questions {listed(map(str, found))}"
            )
    return list(found.values())


def score_of(questions: Sequence[Question], yes: Sequence[bool]) -> float:
    """Return the share of the questions that count as answered yes.

    Args:
        questions: of a prompt, in the order of its rows.
        yes: whether the answer to each was yes.
    """
    counted = {own.number: answer for own, answer in zip(questions, yes, strict=True)}
    for own in questions:
        counted[own.number] &= all(counted[parent] for parent in own.parents)
    return sum(counted.values()) / len(counted)


def _question(number: object, dependency: object, meaning: object, text: object) -> Question:
    own = _number(number, "proposition_id")
    parents = [_number(part, "dependency") for part in str(dependency).split(",")]
    category = str(meaning).partition("(")[0].partition("-")[0].strip()
    if category not in DPG_CATEGORIES:
        raise ValueError(
            f"the tuple of its question {own} is {shown(meaning, 80)}, which begins with none of "
            f"{', '.join(DPG_CATEGORIES)}"
        )
    if not isinstance(text, str) or not text.strip():
        raise ValueError(f"its question {own} is {shown(text, 80)}; write a text")
    return Question(own, tuple(parent for parent in parents if parent), category, text.strip())


def _number(value: object, column: str) -> int:
    try:
        return int(str(value))
    except ValueError as error:
        raise ValueError(
            f"its {column} has {shown(value, 40)}, which is no whole number"
        ) from error
