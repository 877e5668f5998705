"""Advantages, computed in the run's flow: the rewards came there with the receipts of scoring."""

import numpy as np
import torch

from digen_core.algorithms.grpo import group_advantages, zero_variance_groups
from digen_core.config import RunConfig
from tasks.emulation import EmulatedConfig


def advantages_of(
    config: RunConfig, rewards: dict[int, list[float]]
) -> tuple[dict[int, np.ndarray], tuple[int, ...]]:
    """Centre and scale the rewards of groups.

    Args:
        config: of the run.
        rewards: [G] of each group.

    Returns:
        [G] advantages of each group, in float64, and the groups without signal: all rewards equal.
    """
    if isinstance(config, EmulatedConfig):  # its rewards mean nothing; every group is trained
        return {group: np.zeros(len(values)) for group, values in rewards.items()}, ()
    algorithm, groups = config.algorithm, list(rewards)
    flat = torch.tensor(
        [value for values in rewards.values() for value in values], dtype=torch.float64
    )
    owner = torch.tensor(groups).repeat_interleave(config.rollout.group_size)
    values = group_advantages(
        flat,
        owner,
        scale=algorithm.advantage_scale,
        eps=algorithm.advantage_eps,
        ddof=algorithm.advantage_ddof,
    )
    skipped = tuple(int(group) for group in zero_variance_groups(flat, owner))
    return {group: values[owner == group].numpy() for group in groups}, skipped
