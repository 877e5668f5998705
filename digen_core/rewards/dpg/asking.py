"""Yes-no questions about samples, asked of a vision-language model behind a server."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final

import torch
from torch import Tensor

from digen_core.config.rewards.judge_template import QUESTION, load_template
from digen_core.config.rewards.judges import QuestionsReward
from digen_core.data.prompts import Metadata
from digen_core.rewards.attempts import PartialError
from digen_core.rewards.dpg.questions import Question
from digen_core.rewards.judge.answers import scores_in
from digen_core.rewards.judge.asking import Asker, Outcome
from digen_core.rewards.judge.judge import shown_sources

YES: Final = 0.5
"""A template's score above which the answer is yes."""


class QuestionAsker:
    """Asks a model several questions about each sample."""

    def __init__(self, config: QuestionsReward) -> None:
        """Read the template; open no connection yet.

        Raises:
            UserError: the template or the url cannot be used, or the token's environment variable
                is not set.
        """
        self._config, self._template = config, load_template(config.template)
        self._asker = Asker(config, self._template, scores_in, "questions")

    def answers(
        self,
        samples: Tensor,
        prompts: Sequence[str],
        metadata: Sequence[Metadata],
        questions: Sequence[Sequence[Question]],
        sources: Tensor | None = None,
        more_sources: Sequence[Tensor] | None = None,
    ) -> list[list[Outcome | None]]:
        """Return what came of each question about each of B samples.

        Args:
            samples: images [B, 3, H, W] or videos [B, F, 3, H, W].
            prompts: of each.
            metadata: of each.
            questions: about each.
            sources: images [B, 3, H, W] that they are edits of, if the template shows them.
            more_sources: that each prompt has beside, [n, 3, H, W].

        Raises:
            UserError: the template names a column that the metadata have not, or there are no
                sources for it to show.
        """
        videos = samples if samples.ndim == 5 else samples[:, None]
        before = shown_sources(self._template, self._config.template, sources, more_sources)
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
        outcomes = iter(self._asker.outcomes(bodies) if bodies else [])
        return [[next(outcomes) for _ in several] for several in questions]


def is_yes(outcome: Outcome | None) -> bool:
    """Say whether a question was answered with yes."""
    return isinstance(outcome, Mapping) and outcome["score"] > YES


def require_answers(answers: Sequence[Sequence[Outcome | None]], scores: Tensor) -> None:
    """Check that each question was answered; the others have no part in the scores, [B].

    Raises:
        PartialError: some were not.
    """
    errors = [own for of_them in answers for own in of_them if isinstance(own, Exception)]
    lacking = [not all(isinstance(own, Mapping) for own in of_them) for of_them in answers]
    if any(lacking):
        there = torch.where(torch.tensor(lacking), torch.nan, scores)
        raise PartialError(str(errors[0]), there) from errors[0]
