"""Advantages, computed in the run's flow: the rewards came there with the receipts of scoring."""

from collections.abc import Mapping

import numpy as np

from digen_core.algorithms.ddpo import RewardHistory
from digen_core.config.run import RunConfig
from digen_core.training import advantages
from digen_core.training.advantages import Advantages, Columns
from tasks.emulation import EmulatedConfig


def advantages_of(
    config: RunConfig,
    columns: Columns,
    prompts: Mapping[int, str],
    history: RewardHistory,
    step_kl: Mapping[int, np.ndarray] | None = None,
) -> Advantages:
    """Centre and scale the rewards of groups; arguments as in digen_core/training/advantages.py."""
    if isinstance(config, EmulatedConfig):  # its rewards mean nothing; every group is trained
        return Advantages({g: np.zeros(len(column["reward"])) for g, column in columns.items()})
    return advantages.advantages_of(config, columns, prompts, history, step_kl)
