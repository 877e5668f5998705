"""Plans of sites with their own numbers of stages, as they are printed."""

import tomllib
from dataclasses import replace

import pytest
from rich.console import Console

from deployments.operation.workers import workers_of
from deployments.views.plans.row import row_of
from deployments.views.plans.table import print_plan, toml_of
from digen_core.config.run import RunConfig
from digen_core.planning.clusters.cluster import Cluster
from support.staged import HERE, LIGHT, WEAK, cluster_with, plans_of

pytestmark = pytest.mark.slow


def test_the_printed_config_and_gangs_are_those_of_the_plan(capsys):
    cluster = cluster_with(1.0, HERE, WEAK)
    rows = [row_of(plan) for plan in plans_of(cluster, LIGHT)]
    assert rows[0].stages == [(4, 4), (1,) * 8]
    print_plan(rows, "a plan", console=Console(width=200))
    out = capsys.readouterr().out
    assert "the members of each gang of 2" in out
    assert "the members of each gang of 8" in out
    tree = tomllib.loads(out[out.index("[rollout]") :])
    tree["rollout"]["group_size"] = 4
    parallel = RunConfig.model_validate(tree).parallel
    assert parallel.stages_by_size == ((4, 4), (1,) * 8)
    assert [parallel.stages_of(size) for size in (1, 2, 8)] == [1, 2, 8]
    alone = toml_of(replace(rows[0], layout="colocated-strong", rollout=1, trainers=0))
    counts = tomllib.loads(alone)["cluster"]
    assert (counts["rollout_workers"], counts["trainer_workers"]) == (1, 0), "one gang does both"
    assert RunConfig.model_validate(tomllib.loads(alone) | {"model": {}, "parallel": {}})
    gangs = tomllib.loads(out[out.index("[[gangs]]") : out.index("[rollout]")])
    own = Cluster.model_validate(cluster.model_dump() | gangs)
    members = {worker.device: worker.of.members for worker in workers_of(own)}
    assert sorted(members.values()) == [1, 2, 2, 8], "what is left over is a spare"
    assert {w.site for w in workers_of(own) if w.of.members == 8} == {"there"}
