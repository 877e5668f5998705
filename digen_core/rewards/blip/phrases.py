"""Noun phrases of prompts: what T2I-CompBench asks about each, and the means of its attributes.

A prompt's row carries its phrases. The published program has them from spaCy, whose words on what a
noun phrase is no rule of a few lines repeats.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from digen_core.config.rewards import RewardConfig
from digen_core.config.rewards.verifiers import BlipVqaConfig
from digen_core.data.prompts import Prompt
from digen_core.data.published import COMPBENCH_ATTRIBUTES
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


def attribute_scores(
    rewards: Mapping[str, RewardConfig],
    prompts: Sequence[Prompt],
    by_prompt: Mapping[str, Sequence[float | None]],
) -> dict[str, list[float | None]]:
    """Return the scores of prompts by the attribute that their ``category`` says.

    Args:
        rewards: of the config, by name; those of other types have no attributes.
        prompts: that were sampled, all as often.
        by_prompt: of each component the means of prompts, in order.

    Returns:
        For each attribute that there is ``NAME/CATEGORY``; None in the places of other prompts, and
        where there is no score.
    """
    kinds = [prompt.metadata.get("category") for prompt in prompts]
    found: dict[str, list[float | None]] = {}
    for name in (name for name, own in rewards.items() if isinstance(own, BlipVqaConfig)):
        pairs = list(zip(by_prompt[f"{name}/score"], kinds, strict=True))
        for attribute in COMPBENCH_ATTRIBUTES:
            scores = [mean if kind == attribute else None for mean, kind in pairs]
            if any(score is not None for score in scores):
                found[f"{name}/{attribute}"] = scores
    return found


def _question(phrase: str) -> str:
    words = f"{phrase}?".lower().translate(_LEFT_OUT).rstrip(" ").split(" ")
    return " ".join(words[:MOST_WORDS])
