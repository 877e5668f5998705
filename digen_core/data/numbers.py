"""Numbers in the rows of prompts: weights, and what samples that come with them are worth."""

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
