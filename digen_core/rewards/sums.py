"""The reward of a sample: the weighted sum of its scores."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def with_reward(
    columns: Mapping[str, Array], weights: Mapping[str, float], num_samples: int
) -> dict[str, Array]:
    """Return the columns with ``reward``: the scores summed in the order of ``weights``.

    Args:
        columns: float64 [num_samples], with ``<name>/score`` of each reward.
        weights: of the rewards, by name.
        num_samples: how many there are; with no weights their rewards are 0.
    """
    total = np.zeros(num_samples)
    for name, weight in weights.items():
        total += weight * columns[f"{name}/score"]
    return {"reward": total} | {name: own for name, own in columns.items() if name != "reward"}
