"""A vision-language model as a judge: each sample is one request."""

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor

from digen_core.config.rewards.judge_template import PairTemplate, Template, load_template
from digen_core.config.rewards.judges import JudgeConfig
from digen_core.data.prompts import Metadata
from digen_core.errors import UserError
from digen_core.rewards.attempts import PartialError
from digen_core.rewards.judge.answers import scores_in
from digen_core.rewards.judge.asking import Asker


class Judge:
    """Scores samples by asking a model about each."""

    def __init__(self, config: JudgeConfig, device: torch.device) -> None:
        """Read the template; open no connection yet.

        Args:
            config: of the reward.
            device: unused.

        Raises:
            UserError: the template or the url cannot be used, or the token's environment variable
                is not set.
        """
        self._config, self._template = config, load_template(config.template)
        self._asker = Asker(config, self._template, scores_in, "samples")

    def __call__(
        self,
        samples: Tensor,
        prompts: Sequence[str],
        metadata: Sequence[Metadata] = (),
        sources: Tensor | None = None,
        more_sources: Sequence[Tensor] | None = None,
    ) -> dict[str, Tensor]:
        """Score images [B, 3, H, W] or videos [B, F, 3, H, W]: float64 [B] for each component.

        Args:
            samples: to judge.
            prompts: of each.
            metadata: of each.
            sources: images [B, 3, H, W] that they are edits of, shown first if the template says
                so.
            more_sources: that each prompt has beside, [n, 3, H, W], shown behind those.

        Raises:
            PartialError: some have no score, or one has none and that ends the run.
            UserError: the template names a column that the metadata have not, or there are no
                sources for it to show.
        """
        videos = samples if samples.ndim == 5 else samples[:, None]
        before = shown_sources(self._template, self._config.template, sources, more_sources)
        metadata = metadata or [{}] * len(prompts)
        texts = [self._template.texts(*each) for each in zip(prompts, metadata, strict=True)]
        bodies = [
            partial(
                self._asker.about, video, None if before is None else before[index], *texts[index]
            )
            for index, video in enumerate(videos)
        ]
        outcomes = self._asker.outcomes(bodies)
        errors = [outcome for outcome in outcomes if isinstance(outcome, Exception)]
        scored = [outcome for outcome in outcomes if isinstance(outcome, Mapping)]
        if errors or len(scored) < len(outcomes):
            scores = [own["score"] if isinstance(own, Mapping) else np.nan for own in outcomes]
            raise PartialError(str(errors[0]), torch.tensor(scores, dtype=torch.float64)) from (
                errors[0]
            )
        return {
            name: torch.tensor([own[name] for own in scored], dtype=torch.float64)
            for name in scored[0]
        }


def shown_sources(
    template: Template | PairTemplate,
    path: str,
    sources: Tensor | None,
    more_sources: Sequence[Tensor] | None,
) -> Sequence[Tensor] | None:
    """Return the sources of each sample, [n, 3, H, W], if a template shows them.

    Raises:
        UserError: it does, but there are none.
    """
    if not template.source:
        return None
    if sources is None:
        raise UserError(
            f"the judge's template {path} shows source images, but the prompts come without"
        )
    if more_sources is None:
        return [*sources[:, None]]
    pairs = zip(sources[:, None], more_sources, strict=True)
    return [torch.cat(both) for both in pairs]
