"""How an iteration's margins rank its samples: the metrics of algorithms that learn preferences."""

from collections.abc import Mapping

import numpy as np
import torch

from digen_core.algorithms.base import Algorithm
from digen_core.algorithms.dgpo import Preferences
from digen_core.maths.dgpo import share_ranked_rightly


def preference_metrics(
    algorithm: Algorithm, rewards: Mapping[int, np.ndarray], margins: Mapping[int, np.ndarray]
) -> dict[str, float]:
    """Return the share of pairs that implicit rewards rank rightly, and by how much in the mean.

    Of algorithms without preferences, and without a pair of unequal rewards, there are none.

    Args:
        algorithm: of the run.
        rewards: [G] of each group.
        margins: [G, K] of each of these groups.
    """
    if not isinstance(algorithm, Preferences):
        return {}
    found = [
        algorithm.compared(torch.from_numpy(own), torch.from_numpy(margins[group])).flatten()
        for group, own in rewards.items()
    ]
    differences = torch.cat(found) if found else torch.zeros(0)
    if not len(differences):
        return {}
    return {
        "preference/accuracy": share_ranked_rightly(differences),
        "preference/margin": float(differences.mean()),
    }
