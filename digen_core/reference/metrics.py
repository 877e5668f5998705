"""What the serial reference says of an iteration's samples."""

import numpy as np

from digen_core.config.run import RunConfig
from digen_core.rewards.failures import component_means
from digen_core.rewards.relative import without_relative
from digen_core.training.preferences import preference_metrics

Columns = dict[str, np.ndarray]
"""Rewards and their components of the samples of a group, each [G]."""


def sample_means(
    config: RunConfig, columns: dict[int, Columns], of_steps: dict[int, np.ndarray]
) -> dict[str, float]:
    """Return the means over all samples of some groups; without groups there are none.

    Args:
        config: of the run.
        columns: of each group what scoring said.
        of_steps: of each group [G, K] what was asked of its trained steps, if anything was.
    """
    if not columns:
        return {}
    every = list(columns.values())
    scored = {name: np.concatenate([column[name] for column in every]) for name in every[0]}
    means = component_means(without_relative(scored, config.rewards))
    row = {"reward/mean": means.pop("reward")} if "reward" in means else {}
    row |= {f"reward/{name}": mean for name, mean in means.items()}
    if not of_steps:
        return row
    name = "kl" if config.kl_reward else "margin"
    every_value = np.concatenate([own.ravel() for own in of_steps.values()])
    row[f"reward/{name}"] = float(np.mean(every_value))
    rewards = {group: own["reward"] for group, own in columns.items()}
    return row | preference_metrics(config.algorithm, rewards, of_steps)
