"""Noise of samples: where an algorithm has some, and settings that do nothing, or harm, without it.

Every check raises ValueError. Importing this module must not import torch.
"""

import numpy as np

from digen_core.algorithms.base import Algorithm
from digen_core.config.prompts import PromptsConfig
from digen_core.config.rollout import RolloutConfig


def check_solver(algorithm: Algorithm, rollout: RolloutConfig) -> None:
    """Refuse a solver that takes no step, neither of samples nor of candidates without noise."""
    if rollout.solver == "euler" or (rollout.screening and rollout.screening.num_steps):
        return
    noisy, _ = algorithm.steps(rollout.num_steps, 0, np.random.default_rng(0))  # of all groups
    number = algorithm.num_trained(rollout.num_steps) if algorithm.own_noise else len(noisy)
    if number >= rollout.num_steps - 1:
        raise ValueError(
            f"rollout.solver is {rollout.solver}, but algorithm.type {algorithm.type} has noise in "
            f"{number} of rollout.num_steps ({rollout.num_steps}), and the last one is an Euler "
            "step; use a window of noisy steps, or 'euler'."
        )


def check_shared_noise(
    algorithm: Algorithm, rollout: RolloutConfig, prompts: PromptsConfig
) -> None:
    """Refuse samples that start from one noise and would stay the same, having none later."""
    if prompts.sample_columns or not algorithm.trains_clean:
        return
    if rollout.initial_noise == "sample" and rollout.branches == 1:
        return
    key, value = "initial_noise", repr(rollout.initial_noise)
    if rollout.branches > 1:
        key, value = "branches", str(rollout.branches)
    raise ValueError(
        f"rollout.{key} is {value}, but algorithm.type {algorithm.type} generates without noise, "
        "so that samples of a group that start from one would be the same; use initial_noise "
        "'sample' and branches 1."
    )
