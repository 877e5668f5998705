"""Means of rewards over the kinds of prompts that they judge in published suites."""

from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np

from digen_core.config.rewards import RewardConfig
from digen_core.data.kinds import JUDGED, kinds_of
from digen_core.data.prompts import Prompt

ByPrompt = Mapping[str, Sequence[float | None]]
"""Of each component the means of prompts, in order."""


def kind_scores(
    rewards: Mapping[str, RewardConfig], prompts: Sequence[Prompt], by_prompt: ByPrompt
) -> dict[str, list[float | None]]:
    """Return the scores of prompts by their kinds, as far as a reward judges these in a suite.

    Args:
        rewards: of the config, by name; those of other types judge no kinds.
        prompts: that were sampled, all as often.
        by_prompt: what was found.

    Returns:
        For each kind that there is ``NAME/KIND``; None in the places of other prompts, and where
        there is no score.
    """
    found: dict[str, list[float | None]] = {}
    for name, reward in rewards.items():
        for column, kinds in JUDGED.get(reward.type, {}).items():
            known = [kinds_of(prompt.metadata, column) for prompt in prompts]
            parts = of_kinds(by_prompt[f"{name}/score"], known, kinds)
            found |= {f"{name}/{kind}": scores for kind, scores in parts.items()}
    return found


def of_kinds(
    means: Sequence[float | None], known: Sequence[Collection[object]], kinds: Iterable[str]
) -> dict[str, list[float | None]]:
    """Return by kind the means of the prompts that are of it, and None in the places of others.

    Args:
        means: of prompts, in order; None: there is none.
        known: kinds of each prompt.
        kinds: that are asked for; one without any mean is left out.
    """
    found = {
        kind: [mean if kind in own else None for mean, own in zip(means, known, strict=True)]
        for kind in kinds
    }
    return {kind: own for kind, own in found.items() if any(mean is not None for mean in own)}


def kind_means(by_kind: ByPrompt) -> dict[str, float]:
    """Return the mean over the prompts of each kind; there is one of each at least."""
    return {
        kind: float(np.mean([mean for mean in values if mean is not None]))
        for kind, values in by_kind.items()
    }
