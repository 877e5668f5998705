"""What is known of a group's scores when all of them are there: ranks, and what stands for gaps.

Gaps are samples that a reward could not score, where that is neutral (``on_failure = "neutral"``).
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import numpy as np
from numpy.typing import NDArray

from digen_core.config.rewards import RewardConfig, relative
from digen_core.data.prompts import Scores
from digen_core.rewards.relative import with_ranks
from digen_core.rewards.sums import with_reward

Array = NDArray[np.float64]

NONE: Final[Scores] = MappingProxyType({})

FAILED: Final = "failed"
"""The component that marks them: 1 for a sample without a score, else 0."""


def settle(
    columns: Mapping[str, Array], rewards: Mapping[str, RewardConfig], given: Scores = NONE
) -> dict[str, Array]:
    """Add given scores, rank, fill in what is missing so that it favours no sample, sum up anew.

    A missing score becomes the mean of the group's other scores in this reward: centred, it is 0,
    and it moves nobody else's. If the group has none, the reward counts 0 for all: it is left out.

    Args:
        columns: of all samples of one group, as `scoring.score_images` returns them.
        rewards: of the config, by name; all that are called have columns.
        given: what the prompt's row says of the samples, by reward.
    """
    own = {f"{name}/score": np.array(values) for name, values in given.items()}
    settled = with_ranks({**columns, **own}, rewards)
    marks = {name: settled[f"{name}/{FAILED}"] > 0 for name in _marked(settled)}
    if not relative(rewards) and not any(mark.any() for mark in marks.values()):
        return settled
    for name, failed in marks.items():
        scores = settled[f"{name}/score"]
        fill = scores[~failed].mean() if not failed.all() else 0.0
        settled[f"{name}/score"] = np.where(failed, fill, scores)
    weights = {name: reward.weight for name, reward in rewards.items()}
    return with_reward(settled, weights, len(settled["reward"]))


def component_means(columns: Mapping[str, Array]) -> dict[str, float]:
    """Return the mean of each column, of a score over the samples that have one.

    A score that no sample has is left out.
    """
    scores = {column: columns[column][known(columns, column)] for column in columns}
    return {column: float(np.mean(values)) for column, values in scores.items() if len(values)}


def grouped_means(columns: Mapping[str, Array], size: int) -> dict[str, list[float | None]]:
    """Return the means of each column over neighbours, such as the samples of a prompt.

    Args:
        columns: [groups * size] by name.
        size: samples of a group.

    Returns:
        [groups] by name, of a score over the samples that have one; None where there are none.
    """
    found: dict[str, list[float | None]] = {}
    for column, values in columns.items():
        marks = known(columns, column)
        groups = zip(values.reshape(-1, size), marks.reshape(-1, size), strict=True)
        found[column] = [float(own[there].mean()) if there.any() else None for own, there in groups]
    return found


def known(columns: Mapping[str, Array], column: str) -> NDArray[np.bool_]:
    """Return which samples have a value in a column: of a score those that did not fail."""
    name, _, component = column.rpartition("/")
    mark = columns.get(f"{name}/{FAILED}")
    if mark is None or component != "score":
        return np.ones(len(columns[column]), bool)
    return np.equal(mark, 0)


def _marked(columns: Mapping[str, Array]) -> list[str]:
    """Return the rewards whose failure is neutral."""
    ending = f"/{FAILED}"
    return [column.removesuffix(ending) for column in columns if column.endswith(ending)]
