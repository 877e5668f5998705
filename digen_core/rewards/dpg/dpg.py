"""DPG-Bench's score of images: the share of a prompt's questions that a model answers with yes."""

from collections.abc import Sequence

import torch
from torch import Tensor

from digen_core.config.rewards.judges import DpgConfig
from digen_core.config.rewards.verifiers import DpgBlipConfig
from digen_core.data.prompts import Metadata
from digen_core.data.published import DPG_CATEGORIES
from digen_core.rewards.attempts import PermanentError
from digen_core.rewards.blip.answers import BlipAnswers
from digen_core.rewards.blip.phrases import in_words_of_blip
from digen_core.rewards.dpg.asking import YES, QuestionAsker, is_yes, require_answers
from digen_core.rewards.dpg.questions import Question, questions_of, score_of


class Dpg:
    """Scores samples by asking a model behind a server each question of their prompts."""

    def __init__(self, config: DpgConfig, device: torch.device) -> None:
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
        questions = [_asked(row) for row in metadata]
        about = samples, prompts, metadata, questions, sources, more_sources
        answers = self._asker.answers(*about)
        found = _columns(questions, [[is_yes(own) for own in of_them] for of_them in answers])
        require_answers(answers, found["score"])
        return found


class DpgBlip:
    """Scores images by asking a BLIP of this process each question of their prompts."""

    def __init__(self, config: DpgBlipConfig, device: torch.device) -> None:
        """Load model and processor.

        Raises:
            ConfigError: one of them cannot be loaded, or knows neither yes nor no.
        """
        self._blip = BlipAnswers(config, device)

    def __call__(
        self, images: Tensor, prompts: Sequence[str], metadata: Sequence[Metadata]
    ) -> dict[str, Tensor]:
        """Score images [B, 3, H, W]: the components of `Dpg`, float64 [B].

        Raises:
            PermanentError: a row has no questions.
        """
        questions = [_asked(row) for row in metadata]
        texts = [[in_words_of_blip(own.text) for own in several] for several in questions]
        answers = self._blip.probabilities(images, texts)
        return _columns(questions, [[own > YES for own in of_them] for of_them in answers])


def _columns(
    questions: Sequence[Sequence[Question]], yes: Sequence[Sequence[bool]]
) -> dict[str, Tensor]:
    """Return the components of B samples, of what was answered yes to the questions about each."""
    pairs = list(zip(questions, yes, strict=True))
    columns = {
        "score": [score_of(*pair) for pair in pairs],
        **{f"{name}_yes": [_num_yes(*pair, name) for pair in pairs] for name in DPG_CATEGORIES},
    }
    return {name: torch.tensor(own, dtype=torch.float64) for name, own in columns.items()}


def _num_yes(questions: Sequence[Question], yes: Sequence[bool], category: str) -> int:
    pairs = zip(questions, yes, strict=True)
    return sum(answer for own, answer in pairs if own.category == category)


def _asked(row: Metadata) -> list[Question]:
    try:
        return questions_of(row)
    except ValueError as error:
        raise PermanentError(str(error)) from error
