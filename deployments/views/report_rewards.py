"""Rewards in a run's folder: curves of training, evaluations, and the noise."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from digen_core.config.load import config_of_run
from digen_core.config.rewards import RewardConfig, relative
from digen_core.errors import ConfigError, UserError
from digen_core.maths.statistics import standard_error
from digen_core.records import FIRST, LAST, EvaluationReport
from digen_core.trace.page import Table
from digen_core.transport.samples import read_samples
from tasks.views.display import change_text, mean_text, verdict_in_short, wins_cells

Curves = dict[str, dict[int, float]]
"""Name -> number of the iteration, from 1 -> value."""


def reward_curves(run_dir: Path) -> tuple[Curves, Curves]:
    """Return the mean reward, and the share of exact images where one is rewarded.

    They are those of the metrics: of groups that have all their numbers. The reward is without
    those that compare the samples of a group, whose means tell nothing; there may be none.

    Returns:
        The means over the samples of each iteration, and their standard errors over its groups.

    Raises:
        UserError: the samples cannot be read.
    """
    try:
        samples = read_samples(run_dir / "samples")
    except FileNotFoundError:
        return {}, {}
    except (ValueError, OSError) as error:
        raise UserError(f"cannot read the samples of {run_dir}: {error}") from error
    rewards = _rewards_of(run_dir)
    samples = _without_relative(_without_dropped(samples, rewards), rewards)
    if not samples.num_rows:
        return {}, {}
    names = [name for name in samples.column_names if name == "reward" or name.endswith("/exact")]
    curves = {name: _means(samples, name, ["iteration"]) for name in names}
    return curves, {name: _errors(samples, name) for name in names}


def _rewards_of(run_dir: Path) -> Mapping[str, RewardConfig]:
    """Return the rewards of a run's config; none if it is not there, or of another digen."""
    try:
        return config_of_run(run_dir).rewards
    except ConfigError:
        return {}


def _without_dropped(samples: pa.Table, rewards: Mapping[str, RewardConfig]) -> pa.Table:
    """Return the samples without those of groups that were dropped, as they lack a number."""
    lacking = samples["nonfinite"].is_valid()
    if needed := [name for name, reward in rewards.items() if reward.on_failure == "drop"]:
        from digen_core.rewards.failures import FAILED  # torch takes seconds to import

        for mark in {f"{name}/{FAILED}" for name in needed}.intersection(samples.column_names):
            lacking = pc.or_(lacking, pc.greater(samples[mark], 0))
    first = pc.multiply(samples["iteration"].cast(pa.int64()), 2**32)
    groups = pc.add(first, samples["group"].cast(pa.int64()))
    return samples.filter(pc.invert(pc.is_in(groups, groups.filter(lacking).combine_chunks())))


def _without_relative(samples: pa.Table, rewards: Mapping[str, RewardConfig]) -> pa.Table:
    """Return the samples with the reward of which means over groups can be compared, if any."""
    if not relative(rewards):
        return samples
    from digen_core.rewards.relative import without_relative  # torch takes seconds to import

    columns = {name: samples[name].to_numpy() for name in ["reward", *_scores(samples)]}
    shown, samples = without_relative(columns, rewards), samples.drop_columns("reward")
    return (
        samples.append_column("reward", pa.array(shown["reward"])) if "reward" in shown else samples
    )


def _scores(samples: pa.Table) -> list[str]:
    return [name for name in samples.column_names if name.endswith("/score")]


def _means(samples: pa.Table, name: str, keys: list[str]) -> dict[int, float]:
    means = samples.group_by(keys).aggregate([(name, "mean")]).sort_by("iteration")
    numbers = [index + 1 for index in means["iteration"].to_pylist()]
    return dict(zip(numbers, means[f"{name}_mean"].to_pylist(), strict=True))


def _errors(samples: pa.Table, name: str) -> dict[int, float]:
    groups = samples.group_by(["iteration", "group"]).aggregate([(name, "mean")])
    index, means = (groups[column].to_numpy() for column in ("iteration", f"{name}_mean"))
    errors = {int(i) + 1: standard_error(means[index == i].tolist()) for i in np.unique(index)}
    return {number: error for number, error in errors.items() if error is not None}


def evaluation_table(evaluations: Mapping[str, EvaluationReport]) -> Table | None:
    """Return the first and the last of a run's evaluations, by tag, and how they differ.

    None without any, or if they show no reward.
    """
    if not evaluations:
        return None
    found = sorted(evaluations.items(), key=_order)
    (first_tag, first), (last_tag, last) = found[0], found[-1]
    names = sorted(last.rewards, key=lambda name: (name != "reward", name))
    if not names:  # all rewards compare the samples of a group
        return None
    if len(found) == 1:
        return Table(("evaluation", first_tag), [[name, mean_text(last, name)] for name in names])
    rows = [_row(first, last, name) for name in names]
    wins = ["wins"] if last.wins else []
    return Table(("evaluation", first_tag, last_tag, "change", *wins, ""), rows)


def _order(evaluation: tuple[str, EvaluationReport]) -> tuple[int, bool, bool]:
    """Return what evaluations are sorted by: those before and after may be of one version."""
    tag, report = evaluation
    return report.version, tag != FIRST, tag == LAST


def _row(first: EvaluationReport, last: EvaluationReport, name: str) -> list[str]:
    change = last.change_since(first, name)
    before = "" if change is None else mean_text(first, name)
    cells = [name, before, mean_text(last, name), change_text(change)]
    return [*cells, *wins_cells(last, name), verdict_in_short(change)]
