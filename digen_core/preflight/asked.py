"""Checks that prompts, and what comes with them, tell rewards all that they have to know.

Each raises ConfigError with one line: what is wrong, its value, and what to do.
"""

from collections.abc import Callable, Sequence

from digen_core.config.rewards.clip import ClipScoreConfig
from digen_core.config.rewards.verifiers import OcrConfig
from digen_core.data.kinds import text_at
from digen_core.data.prompts import Prompt
from digen_core.errors import ConfigError


def check_prompts(kind: str, prompts: list[Prompt], judge: Callable[[Prompt], object]) -> None:
    """Check each prompt of a reward with a function that raises ValueError."""
    for prompt in prompts:
        try:
            judge(prompt)
        except ValueError as error:
            raise ConfigError(f"{prompt.origin} is not for the reward {kind!r}: {error}") from error


def check_wanted_texts(ocr: OcrConfig, columns: Sequence[str], prompts: list[Prompt]) -> None:
    """Check that each prompt has a text that can be looked for."""
    from digen_core.rewards.ocr import wanted_text

    if ocr.text_column is not None and ocr.text_column not in columns:
        raise ConfigError(
            f"the reward 'ocr' has the text_column {ocr.text_column!r}, which is not one of "
            f"prompts.metadata_columns {list(columns)}; add it there"
        )
    check_prompts("ocr", prompts, lambda p: wanted_text(p.text, p.metadata, ocr.text_column))


def check_compared_texts(
    name: str, reward: ClipScoreConfig, columns: Sequence[str], prompts: list[Prompt]
) -> None:
    """Check that what images are compared with in place of prompts is a text, where it is there."""
    place = reward.text_column
    if place is None:
        return
    if place.partition(".")[0] not in columns:
        raise ConfigError(
            f"the reward {name!r} has the text_column {place!r}, which begins with none of "
            f"prompts.metadata_columns {list(columns)}; add {place.partition('.')[0]} there"
        )
    check_prompts(name, prompts, lambda prompt: text_at(prompt.metadata, place))


def check_wanted_objects(name: str, columns: Sequence[str], prompts: list[Prompt]) -> None:
    """Check that each prompt says what objects it asks for, as GenEval's do."""
    from digen_core.data.published import GENEVAL_COLUMNS
    from digen_core.rewards.geneval.wanted import wanted_of

    _check_columns(name, GENEVAL_COLUMNS, columns)
    check_prompts(name, prompts, lambda prompt: wanted_of(prompt.metadata))


def check_questions(name: str, columns: Sequence[str], prompts: list[Prompt]) -> None:
    """Check that each prompt comes with questions, as DPG-Bench's do."""
    from digen_core.data.published import DPG_COLUMNS
    from digen_core.rewards.dpg.questions import questions_of

    _check_columns(name, DPG_COLUMNS, columns)
    check_prompts(name, prompts, lambda prompt: questions_of(prompt.metadata))


def check_kinds(name: str, columns: Sequence[str], prompts: list[Prompt]) -> None:
    """Check that prompts are of kinds about which something is asked, and say what by."""
    from digen_core.rewards.kind_questions.texts import KINDS, kind_of, questions_of

    check_prompts(name, prompts, lambda prompt: questions_of(prompt.text, prompt.metadata))
    if not any(kind_of(prompt.metadata) for prompt in prompts):
        known = "; ".join(f"{column}: {', '.join(kinds)}" for column, kinds in KINDS.items())
        raise ConfigError(
            f"the reward {name!r} asks about none of the prompts: of prompts.metadata_columns "
            f"{list(columns)} none says a kind that it knows ({known}); name the column, or use "
            "another reward"
        )


def check_phrases(name: str, columns: Sequence[str], prompts: list[Prompt]) -> None:
    """Check that each prompt comes with its noun phrases."""
    from digen_core.rewards.blip.phrases import COLUMN, questions_of

    _check_columns(name, [COLUMN], columns)
    check_prompts(name, prompts, lambda prompt: questions_of(prompt.metadata))


def _check_columns(name: str, needed: Sequence[str], columns: Sequence[str]) -> None:
    if missing := [column for column in needed if column not in columns]:
        raise ConfigError(
            f"the reward {name!r} is told by the column{'s' * (len(needed) > 1)} "
            f"{', '.join(needed)} what a prompt asks for, but prompts.metadata_columns is "
            f"{list(columns)}; add {', '.join(missing)}"
        )
