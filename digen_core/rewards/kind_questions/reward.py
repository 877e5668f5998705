"""The score of kinds of prompts for which suites have detectors, by a judge's answers instead."""

from collections.abc import Sequence

import torch
from torch import Tensor

from digen_core.config.rewards.judges import JudgedKindsConfig
from digen_core.data.prompts import Metadata
from digen_core.rewards.attempts import PermanentError
from digen_core.rewards.dpg.asking import QuestionAsker, is_yes, require_answers
from digen_core.rewards.dpg.questions import Question, score_of
from digen_core.rewards.kind_questions.texts import all_or_nothing, questions_of


class JudgedKinds:
    """Scores samples by asking a model behind a server what the kind of their prompt is about."""

    def __init__(self, config: JudgedKindsConfig, device: torch.device) -> None:
        """Read the template; open no connection yet.

        Args:
            config: of the reward.
            device: unused.

        Raises:
            UserError: the template or the url cannot be used, or the token's environment variable
                is not set.
        """
        self._asker = QuestionAsker(config)

    def __call__(
        self, samples: Tensor, prompts: Sequence[str], metadata: Sequence[Metadata]
    ) -> Tensor:
        """Score images [B, 3, H, W] or videos [B, F, 3, H, W]: float64 [B], in [0, 1].

        The score is the share of the questions that count as answered yes; of VBench's dimensions
        1 if all do, else 0. A sample about which nothing is asked has the score 1.

        Raises:
            PartialError: some have no score, as a question of theirs has no answer.
            PermanentError: a row does not hold what its kind is asked by.
            UserError: the template names a column that the metadata have not.
        """
        questions = [_asked(*each) for each in zip(prompts, metadata, strict=True)]
        answers = self._asker.answers(samples, prompts, metadata, questions)
        shares = [
            score_of(several, [is_yes(own) for own in of_them]) if several else 1.0
            for several, of_them in zip(questions, answers, strict=True)
        ]
        scores = torch.tensor(
            [
                float(share == 1.0) if all_or_nothing(row) else share
                for share, row in zip(shares, metadata, strict=True)
            ],
            dtype=torch.float64,
        )
        require_answers(answers, scores)
        return scores


def _asked(prompt: str, row: Metadata) -> list[Question]:
    try:
        return questions_of(prompt, row)
    except ValueError as error:
        raise PermanentError(str(error)) from error
