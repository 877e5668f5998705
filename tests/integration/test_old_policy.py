"""DiffusionNFT with an old policy that lags behind: it generates, and is what v is compared to."""

import pytest

from digen_core.checkpoints.tensors import last_state
from digen_core.config.run import RunConfig
from support.layout_runs import train_only
from support.runs import TOLERANCE, distance, merged, reference

pytestmark = pytest.mark.ci


def test_the_old_policy_generates_and_trains_as_in_the_serial_loop(
    tree, cluster_address, prefect_backend
):
    changes = {
        "rollout.fragment_size": 2,
        "train.adam_eps": 1e-6,
        "train.learning_rate": 1e-2,
        "cluster.scheduler_address": cluster_address(1, 1),
        "schedule.layout": "tsp",
    }

    def config_of(decay: str) -> RunConfig:
        algorithm = {"type": "diffusion_nft", "old_policy_decay": decay}
        return RunConfig.model_validate(merged(tree, {**changes, "algorithm": algorithm}))

    expected = reference(config_of("ramp"))
    # The first updates keep 0.1% and 0.2% of the old weights: little, but far above the tolerance.
    assert distance(expected.weights, reference(config_of("none")).weights) > 1e-6
    weights = last_state(train_only(config_of("ramp"))).weights
    assert distance(weights, expected.weights) < TOLERANCE["float64"]
