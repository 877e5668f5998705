"""Advantages in the run's flow, from rewards as receipts bring them."""

import numpy as np
import pytest

from digen_core.config import RunConfig
from flows.advantages import advantages_of


def config(**algorithm):
    rollout = {"group_size": 4, "fragment_size": 2}
    return RunConfig.model_validate({"rollout": rollout, "algorithm": algorithm})


def test_groups_by_hand():
    found, skipped = advantages_of(config(), {3: [0.0, 0.0, 1.0, 1.0], 5: [0.3] * 4})
    # Mean 0.5, standard deviation 0.5.
    assert found[3] == pytest.approx([-1, -1, 1, 1], rel=1e-3)
    assert found[5] == pytest.approx([0.0] * 4)
    assert skipped == (5,)
    assert all(values.dtype == np.float64 for values in found.values())


def test_the_scale_may_be_that_of_the_batch():
    rewards = {0: [0.0, 0.0, 1.0, 1.0], 1: [0.0, 0.0, 4.0, 4.0]}
    found, _ = advantages_of(config(advantage_scale="batch"), rewards)
    assert found[1][3] == pytest.approx(4 * found[0][3])
