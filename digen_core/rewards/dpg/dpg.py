"""DPG-Bench's score of images: the share of a prompt's questions that a model answers with yes."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final

import torch
from torch import Tensor

from digen_core.config.rewards.judge_template import QUESTION, load_template
from digen_core.config.rewards.judges import DpgConfig
from digen_core.data.prompts import Metadata
from digen_core.data.published import DPG_CATEGORIES
from digen_core.rewards.attempts import PartialError, PermanentError
from digen_core.rewards.dpg.questions import Question, questions_of, score_of
from digen_core.rewards.judge.answers import scores_in
from digen_core.rewards.judge.asking import Asker, Outcome
from digen_core.rewards.judge.judge import shown_sources

YES: Final = 0.5
"""A template's score above which the answer is yes."""


class Dpg:
    """Scores samples by asking a model each question that comes with their prompts."""

    def __init__(self, config: DpgConfig, device: torch.device) -> None:
        """Read the template; open no connection yet.

        Args:
            config: of the reward.
            device: unused.

        Raises:
            UserError: the template or the url cannot be used, or the token's environment variable
                is not set.
        """
        self._config, self._template = config, load_template(config.template)
        self._asker = Asker(config, self._template, scores_in, "questions")

    def __call__(
        self,
        samples: Tensor,
        prompts: Sequence[str],
        metadata: Sequence[Metadata],
        sources: Tensor | None = None,
        more_sources: Sequence[Tensor] | None = None,
    ) -> dict[str, Tensor]:
        """Score images [B, 3, H, W] or videos [B, F, 3, H, W]: float64 [B] for each component.

        Beside "score", in [0, 1], there is "CATEGORY_yes" of each category: how many of its
        questions were answered yes, whatever they depend on.

        Args:
            samples: to judge.
            prompts: of each.
            metadata: of each, with its questions.
            sources: images [B, 3, H, W] that they are edits of, if the template shows them.
            more_sources: that each prompt has beside, [n, 3, H, W].

        Raises:
            PartialError: some have no score, as a question of theirs has no answer.
            PermanentError: a row has no questions.
            UserError: the template names a column that the metadata have not, or there are no
                sources for it to show.
        """
        videos = samples if samples.ndim == 5 else samples[:, None]
        before = shown_sources(self._template, self._config.template, sources, more_sources)
        questions = [_asked(row) for row in metadata]
        bodies = [
            partial(
                self._asker.about,
                videos[index],
                None if before is None else before[index],
                *self._template.texts(prompts[index], {**metadata[index], QUESTION: own.text}),
            )
            for index, several in enumerate(questions)
            for own in several
        ]
        outcomes = iter(self._asker.outcomes(bodies))
        answers = [[next(outcomes) for _ in several] for several in questions]
        pairs = [
            (several, [isinstance(own, Mapping) and own["score"] > YES for own in of_them])
            for several, of_them in zip(questions, answers, strict=True)
        ]
        columns = {
            "score": [score_of(*pair) for pair in pairs],
            **{f"{name}_yes": [_num_yes(*pair, name) for pair in pairs] for name in DPG_CATEGORIES},
        }
        found = {name: torch.tensor(own, dtype=torch.float64) for name, own in columns.items()}
        _require_answers(answers, found["score"])
        return found


def _require_answers(answers: Sequence[Sequence[Outcome | None]], scores: Tensor) -> None:
    """Check that each question was answered; the others have no part in the scores, [B]."""
    errors = [own for of_them in answers for own in of_them if isinstance(own, Exception)]
    lacking = [not all(isinstance(own, Mapping) for own in of_them) for of_them in answers]
    if any(lacking):
        there = torch.where(torch.tensor(lacking), torch.nan, scores)
        raise PartialError(str(errors[0]), there) from errors[0]


def _num_yes(questions: Sequence[Question], yes: Sequence[bool], category: str) -> int:
    pairs = zip(questions, yes, strict=True)
    return sum(answer for own, answer in pairs if own.category == category)


def _asked(row: Metadata) -> list[Question]:
    try:
        return questions_of(row)
    except ValueError as error:
        raise PermanentError(str(error)) from error
