"""Noun phrases of prompts: what T2I-CompBench asks about each.

A prompt's row carries its phrases. The published program has them from spaCy, whose words on what a
noun phrase is no rule of a few lines repeats.
"""

from collections.abc import Mapping
from typing import Any, Final

from digen_core.inputs.reading import shown

COLUMN: Final = "phrases"
MOST_PHRASES: Final = 8
"""How many phrases of a prompt are asked about: the first ones, as in the published program."""
MOST_WORDS: Final = 50

_LEFT_OUT: Final = dict.fromkeys(map(ord, '.!"()*#:;~'))


def questions_of(row: Mapping[str, Any]) -> list[str]:
    """Return what is asked about each phrase of a prompt's row, in the words of BLIP's training.

    Raises:
        ValueError: its phrases are no list of texts.
    """
    phrases = row.get(COLUMN)
    if not isinstance(phrases, list):
        raise ValueError(
            f"its {COLUMN!r} is {shown(phrases, 80)}; it must be a list of the noun phrases of the "
            "prompt"
        )
    for phrase in phrases:
        if not isinstance(phrase, str) or not phrase.strip():
            raise ValueError(f"its {COLUMN!r} has {shown(phrase, 80)}; each must be a text")
    return [_question(phrase) for phrase in phrases[:MOST_PHRASES]]


def _question(phrase: str) -> str:
    words = f"{phrase}?".lower().translate(_LEFT_OUT).rstrip(" ").split(" ")
    return " ".join(words[:MOST_WORDS])
