"""Runs that choose their layout, learn their costs, and begin with an earlier run's."""

import json

import pytest

from digen_core.config.run import RunConfig
from digen_core.planning.profile import load_profile
from support.runs import Watch, merged, only_run

pytestmark = [pytest.mark.ci, pytest.mark.usefixtures("prefect_backend")]


def run(tree, changes):
    from flows.post_train import post_train
    from flows.runtime.observers import watching

    watch = Watch()
    with watching(watch):
        post_train(RunConfig.model_validate(merged(tree, changes)))
    run_dir = only_run(merged(tree, changes))
    schedule = json.loads((run_dir / "schedule.json").read_text())
    kept = json.loads((run_dir / "config.json").read_text())
    return watch.records, run_dir, schedule, kept


def test_a_layout_is_chosen_and_costs_are_learnt(tree, tmp_path, cluster_address):
    records, run_dir, schedule, kept = run(tree, {"schedule.layout": "auto"})
    assert len(records) == 3
    assert schedule["layout"] == kept["schedule"]["layout"] != "auto"
    assert all("makespan/predicted_error" in record.metrics for record in records)
    costs = load_profile(run_dir / "profile.json").kinds["cpu"]
    assert min(costs.step(4), costs.decode(4), costs.pack(4)) > 0

    profile = str(run_dir / "profile.json")
    changes = {
        "schedule.profile": profile,
        "schedule.layout": "auto",
        "num_iterations": 1,
        "cluster.scheduler_address": cluster_address(1, 1),
    }
    again = changes | {"tracking.runs_dir": str(tmp_path / "again")}
    records, _, schedule, _ = run(tree, again)
    assert len(records) == 1
    assert schedule["predicted_seconds"] > 0
