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

_PLACES: Final = ("top", "the side", "the left", "the right")  # noun phrases, but of no thing
_LEFT_OUT: Final = dict.fromkeys(map(ord, '.!"()*#:;~'))


def questions_of(row: Mapping[str, Any]) -> list[str]:
    """Return what is asked about each phrase of a prompt's row, in the words of BLIP's training.

    Raises:
        ValueError: its phrases are no list of texts.
    """
    return [in_words_of_blip(f"{phrase}?") for phrase in phrases_of(row)]


def phrases_of(row: Mapping[str, Any]) -> list[str]:
    """Return the noun phrases of a prompt's row that are asked about.

    As in the published program some that say where things are do not count.

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
    return [phrase for phrase in phrases if phrase not in _PLACES][:MOST_PHRASES]


def in_words_of_blip(question: str) -> str:
    """Return a question as BLIP was trained with: of small letters, and few signs and words."""
    words = question.lower().translate(_LEFT_OUT).rstrip(" ").split(" ")
    return " ".join(words[:MOST_WORDS])
