"""A run config for the tiny FLUX, and clusters that several tests share."""

import pytest
from integration_support import tree_of


@pytest.fixture
def tree(tiny_flux, tmp_path) -> dict:
    """Config of a small run on it, as a tree to be changed."""
    return tree_of(tiny_flux, tmp_path)


@pytest.fixture(scope="session")
def cluster_address(request):
    """Return a function (rollout, trainers) -> address of a cluster of worker processes."""
    from contextlib import ExitStack

    from digen_core.config import ClusterConfig
    from tasks.cluster import local_devices, run_cluster

    stack, addresses = ExitStack(), {}

    def address_of(rollout: int, trainers: int) -> str:
        if (rollout, trainers) not in addresses:
            config = ClusterConfig(rollout_workers=rollout, trainer_workers=trainers)
            cluster = run_cluster(config, local_devices(config))
            addresses[rollout, trainers] = stack.enter_context(cluster)
        return addresses[rollout, trainers]

    with stack:
        yield address_of
