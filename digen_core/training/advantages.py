"""Advantages of a run's groups from their rewards, and the choice of the samples to train."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from digen_core.config.run import RunConfig
from digen_core.maths.advantages import Scored, best_of_n
from digen_core.maths.ddpo import RewardHistory
from digen_core.rewards.failures import FAILED

Columns = Mapping[int, Mapping[str, Sequence[float] | np.ndarray]]
"""Of each group what scoring returned: [G] of ``reward`` and of each component."""

Marks = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Advantages:
    """Of some groups, by group."""

    values: dict[int, np.ndarray]  # float64 [G], or [G, K] where trained steps differ
    skipped: tuple[int, ...] = ()  # groups without signal
    chosen: dict[int, tuple[int, ...]] = field(default_factory=dict)  # trained samples; else all
    dropped: frozenset[int] = frozenset()  # of those skipped: they lack a number
    history: RewardHistory = field(default_factory=dict)  # these rewards included, where it is kept


def advantages_of(
    config: RunConfig,
    columns: Columns,
    prompts: Mapping[int, str],
    history: RewardHistory,
    step_values: Mapping[int, np.ndarray] | None = None,
    nonfinite: Collection[int] = (),
) -> Advantages:
    """Centre and scale the rewards of groups.

    A group that lacks a number is dropped: skipped, and what it has moves no other's advantages.

    Args:
        config: of the run.
        columns: the rewards, of all groups at once if the advantages need that.
        prompts: of each group.
        history: rewards of each prompt in earlier iterations, for algorithms that keep them.
        step_values: of each group [G, K], what was asked of each trained step (`asks_of_steps`).
        nonfinite: groups with a sample that is NaN or infinite; their columns may be missing.
    """
    dropped = frozenset({*nonfinite, *_without_score(config, columns)})
    zeros = {group: np.zeros(config.rollout.group_size) for group in sorted(dropped)}
    columns = {group: column for group, column in columns.items() if group not in dropped}
    if not columns:
        return Advantages(zeros, tuple(zeros), history=history, dropped=dropped)
    parts = [
        _signal_of(config, own, prompts, history, step_values)
        for own in _by_trained_steps(columns, step_values)
    ]
    return Advantages(
        values={group: own for part in parts for group, own in part.values.items()} | zeros,
        skipped=tuple(sorted(dropped.union(*(part.skipped for part in parts)))),
        chosen={group: own for part in parts for group, own in part.chosen.items()},
        history=parts[-1].history,
        dropped=dropped,
    )


def _by_trained_steps(
    columns: Columns, step_values: Mapping[int, np.ndarray] | None
) -> list[Columns]:
    """Return groups of one number of trained steps together, if something is asked of each step."""
    if step_values is None:
        return [columns]
    numbers = {group: step_values[group].shape[1] for group in columns}
    return [
        {group: column for group, column in columns.items() if numbers[group] == number}
        for number in sorted(set(numbers.values()))
    ]


def _signal_of(
    config: RunConfig,
    columns: Columns,
    prompts: Mapping[int, str],
    history: RewardHistory,
    step_values: Mapping[int, np.ndarray] | None,
) -> Advantages:
    """Return the advantages of groups that lack no number."""
    rows, weights, counted = mixed_rows(config, columns)
    asked = None
    if step_values is not None:
        asked = torch.from_numpy(np.concatenate([step_values[group] for group in columns]))
    owner = torch.tensor(list(columns)).repeat_interleave(config.rollout.group_size)
    scored = Scored(
        reward=_column(columns, "reward"),
        owner=owner,
        prompts=[prompts[int(group)] for group in owner],
        rows=rows,
        weights=weights,
        counted=counted,
        step_values=asked,
    )
    signal = config.algorithm.signal(scored, history)
    values, best_of = signal.advantages, config.algorithm.best_of
    return Advantages(
        values={group: values[owner == group].numpy() for group in columns},
        skipped=tuple(sorted(signal.flat)),
        chosen=_chosen(values, owner, best_of, config.rollout.group_size),
        history=signal.history,
    )


def _without_score(config: RunConfig, columns: Columns) -> list[int]:
    """Return the groups with a sample that lacks a score without which it is not trained."""
    return [group for group, column in columns.items() if lacking_score(config, column).any()]


def lacking_score(config: RunConfig, column: Mapping[str, Sequence[float] | np.ndarray]) -> Marks:
    """Return [G] which samples of a group lack a score without which they are not trained."""
    needed = [name for name, reward in config.rewards.items() if reward.on_failure == "drop"]
    marks = [np.asarray(column[f"{name}/{FAILED}"]) > 0 for name in needed]
    found: Marks = np.any([np.zeros(len(column["reward"]), bool), *marks], axis=0)
    return found


def mixed_rows(config: RunConfig, columns: Columns) -> tuple[Tensor, Tensor, Tensor]:
    """Return the rewards that advantages are made of, float64 [K, B], and their weights [K].

    The third is bool [K, B]: whether they are known. Rewards that weigh 0 say nothing in them.
    """
    weights = {name: weight for name, weight in config.reward_weights.items() if weight}
    if config.algorithm.mix == "rewards":
        known = _counted(columns, weights)[None]
        return _column(columns, "reward")[None], torch.ones(1, dtype=torch.float64), known
    rows = [_column(columns, f"{name}/score") for name in weights]
    known = torch.stack([_counted(columns, [name]) for name in weights])
    return torch.stack(rows), torch.tensor([*weights.values()], dtype=torch.float64), known


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
