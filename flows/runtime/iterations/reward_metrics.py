"""Metrics of an iteration's rewards: means over its samples, and how sure they are."""

from collections.abc import Collection, Mapping
from statistics import fmean, mean, pstdev

import numpy as np

from digen_core.config.rewards import RewardConfig
from digen_core.maths.statistics import error_of, standard_error
from digen_core.rewards.failures import FAILED, component_means
from digen_core.rewards.relative import without_relative
from digen_core.rewards.sums import joined

Columns = Mapping[str, np.ndarray]


def reward_metrics(
    rewards: Mapping[str, RewardConfig],
    groups: Mapping[int, Columns],
    dropped: Collection[int],
    **asked: Mapping[int, list[float]],
) -> dict[str, float]:
    """Return the metrics of the groups that have all their numbers; failures are of all groups.

    Args:
        rewards: of the config. Of those that compare the samples of a group no mean is taken.
        groups: of each group what scoring said, [G] by name.
        dropped: groups that lack a number; if all do, there are no means.
        asked: what was asked of trained steps, by its name: of each group its samples' numbers.
    """
    kept = {group: column for group, column in groups.items() if group not in dropped}
    found: dict[str, float] = {}
    for name, values in asked.items():
        if every := [value for group in kept for value in values.get(group, ())]:
            found[f"reward/{name}"] = fmean(every)
    if kept:
        found["reward/std"] = mean(pstdev(column["reward"].tolist()) for column in kept.values())
    groups = {group: without_relative(column, rewards) for group, column in groups.items()}
    kept = {group: column for group, column in groups.items() if group not in dropped}
    means = component_means(joined([*kept.values()]))
    of_all = component_means(joined([*groups.values()]))
    failures = {name: value for name, value in of_all.items() if _is_failure(name)}
    found |= {_metric(name): value for name, value in {**means, **failures}.items()}
    return {**found, **_errors(kept)}


def _errors(groups: Mapping[int, Columns]) -> dict[str, float]:
    """Return the standard errors of the means: the groups' prompts are what varies."""
    by_group: dict[str, list[float]] = {}
    for columns in groups.values():
        for name, value in component_means(columns).items():
            by_group.setdefault(_metric(name), []).append(value)
    errors = {error_of(name): standard_error(means) for name, means in by_group.items()}
    return {name: error for name, error in errors.items() if error is not None}


def _metric(column: str) -> str:
    return "reward/mean" if column == "reward" else f"reward/{column}"


def _is_failure(column: str) -> bool:
    return column.endswith(f"/{FAILED}")
