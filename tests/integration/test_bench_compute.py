"""The bench of real compute on a run's workers, measured to the end."""

import pytest

from deployments.bench.compute import measure
from digen_core.config.run import RunConfig
from support.runs import merged

pytestmark = pytest.mark.slow


@pytest.mark.nightly
def test_every_iteration_is_measured_whatever_time_the_run_would_have(
    tree, cluster_address, prefect_backend, tmp_path
):
    changes = {"max_minutes": 1e-6, "cluster.scheduler_address": cluster_address(1, 1)}
    changes |= {"max_cost": 1e-6, "cluster.price_per_hour": {"cpu": 1.0}}
    config = RunConfig.model_validate(merged(tree, changes))
    said = []

    serial, elastic = measure(config, ["elastic"], 1, 2, str(tmp_path), said.append)

    assert said == ["round 1 of 1: serial ...", "round 1 of 1: elastic ..."]
    assert (elastic.layout, elastic.split) == ("elastic", "1:1")
    for row in (serial, elastic):
        assert len(row.seconds) == 2
        assert min(row.seconds) > 0
    assert len(elastic.busy) == len(elastic.errors) == 2
