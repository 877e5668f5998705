"""The accuracy of each of GenEval's tasks, and their mean: what its tables show."""

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from digen_core.config.rewards import RewardConfig
from digen_core.config.rewards.verifiers import GenevalConfig
from digen_core.data.kinds import kinds_of
from digen_core.data.prompts import Prompt
from digen_core.data.published import GENEVAL_TASKS
from digen_core.rewards.kinds import ByPrompt, kind_means, of_kinds

OVERALL: Final = "overall"


def accuracies(
    rewards: Mapping[str, RewardConfig], prompts: Sequence[Prompt], by_prompt: ByPrompt
) -> dict[str, list[float | None]]:
    """Return what share of the samples of each prompt is correct, by task.

    Args:
        rewards: of the config, by name; those of other types have no tasks.
        prompts: that were sampled, all as often.
        by_prompt: what was found.

    Returns:
        For each task that there is ``NAME/TAG``; None in the places of prompts of other tasks.
    """
    tags = [kinds_of(prompt.metadata, "tag") for prompt in prompts]
    found: dict[str, list[float | None]] = {}
    for name in (name for name, reward in rewards.items() if isinstance(reward, GenevalConfig)):
        correct = by_prompt.get(f"{name}/correct")
        if correct is None:  # its failure is neutral: it has a score only
            continue
        parts = of_kinds(correct, tags, GENEVAL_TASKS)
        found |= {f"{name}/{task}": means for task, means in parts.items()}
    return found


def task_means(by_task: ByPrompt) -> dict[str, float]:
    """Return the accuracy of each task, and ``NAME/overall``, the mean over the tasks."""
    means = kind_means(by_task)
    names = dict.fromkeys(task.rpartition("/")[0] for task in means)
    overall = {
        f"{name}/{OVERALL}": float(
            np.mean([mean for task, mean in means.items() if task.rpartition("/")[0] == name])
        )
        for name in names
    }
    return means | overall
