"""Rewards that compare the samples of a group: whole runs, however their groups are cut and placed.

Weights are those of the serial loop, which scores each group at once.
"""

import numpy as np
import pyarrow.dataset as ds
import pytest

from digen_core.checkpoints.tensors import last_state
from digen_core.config.run import RunConfig
from digen_core.transport.samples import read_samples
from support.judge_servers import MODEL, images_of, judging, says
from support.layout_runs import RELATIVE, Case, check_weights
from support.runs import TOLERANCE, Watch, distance, merged, only_run, reference

pytestmark = pytest.mark.slow

CASES = [
    Case("elastic", (2, 2), 1, 3, helping=True, pauses=True),
    Case("tcss", (2, 2), 2, 3, helping=True, pauses=True, share=1.0),
    Case("colocated", (3,), 2, 8),
    Case("colocated-strong", (4,), 1, 3, pauses=True),
    Case("disaggregated", (3, 1), 1, 3),
    Case("gap", (2, 2), 2, 8),
    Case("tsp", (2, 1), 4, 3, pauses=True),
    Case("tag", (2, 2), 1, 8, helping=True, pauses=True),
]


@pytest.mark.layouts
@pytest.mark.parametrize("case", CASES, ids=str)
def test_weights_equal_the_serial_reference(case, run_layout):
    run = run_layout(case, rewards=RELATIVE)
    check_weights(run)
    for row in run.samples():
        versus, picks = row["smooth_rewards:versus/score"], row["picks/score"]
        assert row["reward"] == pytest.approx(0.5 * picks + versus)
    scored = [span for span in run.spans if span.kind == "score" and span.fragment < 0]
    assert len(scored) == 3 * 3  # groups
    for record in run.records:
        assert "reward/mean" not in record.metrics  # of nothing but comparisons
        assert "reward/picks/score" not in record.metrics
        assert record.metrics["reward/picks/ties"] == 0
        assert record.metrics["reward/std"] > 0


@pytest.mark.layouts
def test_skipped_dropped_and_replaced_groups(run_layout):
    changes = {
        "rewards": {
            **RELATIVE,
            "odd": {"type": "function", "function": "smooth_rewards:sometimes_none",
                    "on_failure": "drop", "weight": 0.0},
            "odd_ranks": {"type": "ranked", "of": "odd"},
        },
        "rollout.refill": 1,
        "num_iterations": 5,
    }  # fmt: skip
    run = run_layout(Case("gap", (2, 2), 2, 3), **changes)
    assert sum(record.metrics["numerics/dropped_groups"] for record in run.records) > 0
    check_weights(run, version=5)


@pytest.mark.layouts
@pytest.mark.parametrize("updates", [2])
def test_several_updates_of_dealt_samples(run_layout, updates):
    changes = {"train.updates_per_iteration": updates, "train.dealt_by": "samples"}
    run = run_layout(Case("tsp", (2, 2), 1, 3), rewards=RELATIVE, **changes)
    check_weights(run, version=3 * updates)


def brighter(request):
    one, other = (image.astype(float).mean() for image in images_of(request)[0])
    return says(A=0.8, B=0.2) if one > other else says(A=0.2, B=0.8)


@pytest.mark.operation
def test_a_judge_of_pairs_in_a_pool_beside_others(tree, prefect_backend):
    """The pool alone asks; evaluations ask nothing, and show the other rewards."""
    from flows.post_train import post_train
    from flows.runtime.observers import watching

    watch = Watch()
    with judging(brighter) as server:
        duel = {"type": "pairwise", "url": server.url, "model": MODEL, "pool": "judges"}
        changes = {
            "rewards": {**RELATIVE, "duel": {**duel, "opponents": 2}},
            "cluster.reward_workers": {"judges": 1},
            "rollout.fragment_size": 2,
            "num_iterations": 2,
        }
        config = RunConfig.model_validate(merged(tree, changes))
        with watching(watch):
            report = post_train(config)
        num_asked = len(server.requests)
        serial = reference(config)
    run_dir = only_run(tree)
    assert distance(last_state(run_dir).weights, serial.weights) < TOLERANCE["float64"]
    assert num_asked == 1 + 2 * 2 * 4  # the trial; pairs of each group
    assert list(report.after.rewards) == ["smooth_rewards:brightness/score"]
    rows = read_samples(run_dir / "samples").to_pandas()
    assert rows.groupby(["iteration", "group"])["duel/score"].sum().tolist() == [2.0] * 4
    spans = ds.dataset(run_dir / "spans").to_table().to_pandas()
    of_groups = spans[(spans.kind == "score") & (spans.fragment < 0)]
    assert of_groups.device.value_counts().to_dict() == {"judges-0": 4, "rollout-0": 4}
    wanted = 0.5 * rows["picks/score"] + rows["smooth_rewards:versus/score"] + rows["duel/score"]
    assert np.allclose(rows.reward, wanted)
    for record, row in zip(watch.records, serial.metrics, strict=True):
        shown = {name: value for name, value in row.items() if name.startswith("reward/")}
        assert shown.keys() <= record.metrics.keys()
        assert record.metrics["reward/duel/ties"] == row["reward/duel/ties"]
        assert "reward/duel/score" not in {**record.metrics, **row}
        assert 0 < record.metrics["reward/duel/first"] < 1
