"""What the rewards of some groups make of their samples: advantages, and who is trained."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from digen_core.algorithms.advantages import (
    best_of_n,
    kl_reward_advantages,
    mixed_advantages,
    penalised_rewards,
)
from digen_core.algorithms.ddpo import RewardHistory, running_advantages
from digen_core.algorithms.grpo import zero_variance_groups
from digen_core.config.run import RunConfig
from digen_core.rewards.failures import FAILED

Columns = Mapping[int, Mapping[str, Sequence[float] | np.ndarray]]
"""Of each group what scoring returned: [G] of ``reward`` and of each component."""


@dataclass(frozen=True, slots=True)
class Advantages:
    """Of some groups, by group."""

    values: dict[int, np.ndarray]  # float64 [G], or [G, K] where trained steps differ
    skipped: tuple[int, ...] = ()  # groups without signal
    chosen: dict[int, tuple[int, ...]] = field(default_factory=dict)  # trained samples; else all
    history: RewardHistory = field(default_factory=dict)  # of DDPO, these rewards included


def advantages_of(
    config: RunConfig,
    columns: Columns,
    prompts: Mapping[int, str],
    history: RewardHistory,
    step_kl: Mapping[int, np.ndarray] | None = None,
) -> Advantages:
    """Centre and scale the rewards of groups.

    Args:
        config: of the run.
        columns: the rewards, of all groups at once if the advantages need that.
        prompts: of each group.
        history: DDPO's, of earlier iterations.
        step_kl: of each group [G, K], the divergence from the reference policy at each trained
            step; where ``algorithm.kl_reward`` takes it off the rewards.
    """
    reward = _column(columns, "reward")
    owner = torch.tensor(list(columns)).repeat_interleave(config.rollout.group_size)
    flat: set[int] = set()  # DDPO: equal rewards still differ from the prompt's earlier ones
    if config.algorithm.type == "ddpo":
        texts = [prompts[int(group)] for group in owner]
        values, history = running_advantages(
            reward,
            texts,
            history,
            buffer_size=config.algorithm.buffer_size,
            min_count=config.algorithm.min_count,
            eps=config.algorithm.advantage_eps,
        )
        bound = config.algorithm.max_advantage
        values = values.clamp(-bound, bound)
    elif step_kl is not None:
        kl = torch.from_numpy(np.concatenate([step_kl[group] for group in columns]))
        coefficient = config.kl_reward
        counted = _counted(columns, config.rewards)
        values = kl_reward_advantages(
            reward, kl, owner, coefficient=coefficient, counted=counted, **_scaling(config)
        )
        flat = _without_signal(config, penalised_rewards(reward, kl, coefficient).T, owner)
    else:
        mix = config.algorithm.mix
        rows, weights, counted = _mixed(config, columns)
        values = mixed_advantages(
            rows, owner, weights, mix=mix, counted=counted, **_scaling(config)
        )
        flat = _without_signal(config, rows, owner)
    return Advantages(
        values={group: values[owner == group].numpy() for group in columns},
        skipped=tuple(sorted(flat)),
        chosen=_chosen(values, owner, config.algorithm.best_of, config.rollout.group_size),
        history=history,
    )


def _scaling(config: RunConfig) -> dict[str, Any]:
    """Return how advantages are scaled, as ``group_advantages`` takes it."""
    algorithm = config.algorithm
    return {
        "scale": algorithm.advantage_scale,
        "eps": algorithm.advantage_eps,
        "ddof": algorithm.advantage_ddof,
        "trimmed_ratio": algorithm.trimmed_ratio,
        "max_advantage": algorithm.max_advantage,
    }


def _mixed(config: RunConfig, columns: Columns) -> tuple[Tensor, Tensor, Tensor]:
    """Return the rewards that advantages are made of, float64 [K, B], and their weights [K].

    The third is bool [K, B]: whether they are known.
    """
    if config.algorithm.mix == "rewards":
        known = _counted(columns, config.rewards)[None]
        return _column(columns, "reward")[None], torch.ones(1, dtype=torch.float64), known
    rows = [_column(columns, f"{name}/score") for name in config.rewards]
    weights = list(config.reward_weights.values())
    known = torch.stack([_counted(columns, [name]) for name in config.rewards])
    return torch.stack(rows), torch.tensor(weights, dtype=torch.float64), known


def _counted(columns: Columns, names: Iterable[str]) -> Tensor:
    """Return [B] whether the sample's group has a score in each of these rewards.

    Where it has none, what is filled in must not move the standard deviation of all groups. If that
    is so in every group, all count.
    """
    marks = [f"{name}/{FAILED}" for name in names]
    known = [
        not any(mark in column and np.all(column[mark]) for mark in marks)
        for column in columns.values()
    ]
    if not any(known):
        known = [True] * len(known)
    sizes = torch.tensor([len(column["reward"]) for column in columns.values()])
    return torch.tensor(known).repeat_interleave(sizes)


def _without_signal(config: RunConfig, rows: Tensor, owner: Tensor) -> set[int]:
    """Return the groups whose rewards are all equal, in each row of rewards [K, B]."""
    trimmed_ratio = config.algorithm.trimmed_ratio
    return set.intersection(
        *(set(zero_variance_groups(row, owner, trimmed_ratio=trimmed_ratio)) for row in rows)
    )


def _column(columns: Columns, name: str) -> Tensor:
    """Return one number of each sample, group after group, float64 [B]."""
    flat = np.concatenate([np.asarray(column[name], np.float64) for column in columns.values()])
    return torch.from_numpy(flat)


def _chosen(
    values: Tensor, owner: Tensor, best_of: int | None, group_size: int
) -> dict[int, tuple[int, ...]]:
    """Return the samples of each group to train, by their index in the group."""
    if best_of is None:
        return {}
    chosen: dict[int, list[int]] = {group: [] for group in owner.tolist()}
    for position in best_of_n(values.reshape(len(values), -1).mean(1), owner, best_of).tolist():
        chosen[int(owner[position])].append(position % group_size)
    return {group: tuple(samples) for group, samples in chosen.items()}
