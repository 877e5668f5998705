"""Numbers in the rows of prompts: weights, steps, and what samples that come with them score."""

import math
from collections.abc import Mapping
from typing import Final

from digen_core.config.rewards import RewardConfig, given
from digen_core.data.rows import Row
from digen_core.errors import ConfigError
from digen_core.inputs.reading import shown

WEIGHTS: Final = (1e-9, 1e9)
"""Smallest and largest weight of a prompt, so that sums of them keep the small ones."""


def weight_in(row: Row, column: str) -> float:
    """Return how often a row's prompt is drawn.

    Raises:
        ConfigError: it is no number that a weight may be; the message names row and column.
    """
    weight, (least, most) = _number(row, column), WEIGHTS
    if weight != 0 and not least <= weight <= most:
        raise ConfigError(
            f"{row.origin}: its {column!r} is {shown(row.values.get(column))}; a weight is 0, or "
            f"from {least:g} to {most:g}"
        )
    return weight


def steps_in(row: Row, column: str | None, most: int) -> int | None:
    """Return in how many steps a row's samples are denoised; None if it does not say.

    Args:
        row: of prompts.
        column: that says it.
        most: that it may be.

    Raises:
        ConfigError: it is no whole number of 2 or more and at most that.
    """
    if column is None or row.values.get(column) in (None, ""):
        return None
    steps = _number(row, column)
    if not (steps >= 2 and steps.is_integer()):
        raise ConfigError(
            f"{row.origin}: its {column!r} is {shown(row.values.get(column))}; a number of "
            "denoising steps is whole, and 2 or more"
        )
    if steps > most:
        raise ConfigError(
            f"{row.origin}: its {column!r} is {steps:g}, but rollout.num_steps, the most that "
            f"memory and plans count with, is {most}; set that to as many as any prompt has"
        )
    return int(steps)


def scores_in(row: Row, rewards: Mapping[str, RewardConfig]) -> dict[str, tuple[float, ...]]:
    """Return what a row says of the samples that come with it: reward -> a number for each.

    Args:
        row: of prompts.
        rewards: of the config, by name.

    Raises:
        ConfigError: a column holds no finite number; the message names row and column.
    """
    return {
        name: reward.values or tuple(_score(row, column, name) for column in reward.columns)
        for name, reward in given(rewards).items()
    }


def _score(row: Row, column: str, name: str) -> float:
    score = _number(row, column)
    if not math.isfinite(score):
        raise ConfigError(
            f"{row.origin}: its {column!r} is {shown(row.values.get(column))}, which "
            f"rewards.{name} cannot be; write a finite number"
        )
    return score


def _number(row: Row, column: str) -> float:
    """Return the number in a column, which tables of text have in words; NaN if there is none."""
    value = row.values.get(column)
    try:
        return math.nan if value is None or isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        return math.nan
