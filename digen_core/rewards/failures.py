"""Samples that a reward could not score, where that is neutral (``on_failure = "neutral"``)."""

from collections.abc import Mapping
from typing import Final

import numpy as np
from numpy.typing import NDArray

from digen_core.rewards.sums import with_reward

Array = NDArray[np.float64]

FAILED: Final = "failed"
"""The component that marks them: 1 for a sample without a score, else 0."""


def settle(columns: Mapping[str, Array], weights: Mapping[str, float]) -> dict[str, Array]:
    """Fill in the missing scores of one group so that they favour no sample, and sum up anew.

    A missing score becomes the mean of the group's other scores in this reward: centred, it is 0,
    and it moves nobody else's. If the group has none, the reward counts 0 for all: it is left out.

    Args:
        columns: of all samples of one group, as `scoring.score_images` returns them.
        weights: of the rewards.
    """
    settled = dict(columns)
    marks = {name: columns[f"{name}/{FAILED}"] > 0 for name in _marked(columns)}
    if not any(mark.any() for mark in marks.values()):
        return settled
    for name, failed in marks.items():
        scores = columns[f"{name}/score"]
        fill = scores[~failed].mean() if not failed.all() else 0.0
        settled[f"{name}/score"] = np.where(failed, fill, scores)
    return with_reward(settled, weights, len(settled["reward"]))


def component_means(columns: Mapping[str, Array]) -> dict[str, float]:
    """Return the mean of each column, of a score over the samples that have one.

    A score that no sample has is left out.
    """
    means = {}
    for column, values in columns.items():
        name, _, component = column.rpartition("/")
        mark = columns.get(f"{name}/{FAILED}")
        known = values if mark is None or component != "score" else values[mark == 0]
        if len(known):
            means[column] = float(np.mean(known))
    return means


def _marked(columns: Mapping[str, Array]) -> list[str]:
    """Return the rewards whose failure is neutral."""
    ending = f"/{FAILED}"
    return [column.removesuffix(ending) for column in columns if column.endswith(ending)]
