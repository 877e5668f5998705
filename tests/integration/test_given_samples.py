"""Training on samples from files: whole runs make the serial loop's weights, under any layout."""

import pytest

from digen_core.config.run import RunConfig
from digen_core.reference.replay import kept_iteration, replay_config
from digen_core.transport.samples import read_samples
from support.given import LABELS, rows_with_samples, write_samples
from support.in_process import train_in_process
from support.layout_runs import JOB, Case, check_weights, marked
from support.resumed import JOB as RESUMED
from support.resumed import check_run, stop_before_checkpoint
from support.runs import TOLERANCE, distance, initial, merged, only_run, reference
from tasks.replay import replay

DPO = {"algorithm": {"type": "dpo", "num_levels": 2, "trained_fraction": 0.75}}
NFT = {
    "algorithm": {"type": "diffusion_nft", "trained_fraction": 0.75, "old_policy_decay": "ramp"},
}
EMPTIED = {"prompts.empty_fraction": 0.3}
CASES = [
    (DPO, Case("colocated", (3,), 2, 3)),
    (DPO, Case("elastic", (2, 1), 1, 8, helping=True)),
    (DPO | EMPTIED, Case("tcss", (2, 1), 2, 3, pauses=True, share=1.0)),
    (NFT, Case("tcss", (2, 2), 4, 5, helping=True, share=1.0)),
]


@pytest.mark.ci
@pytest.mark.parametrize(("job", "case"), marked(CASES, (2,), "layouts"), ids=str)
def test_weights_equal_the_serial_reference(job, case, run_layout, tmp_path):
    found = run_layout(case, **write_samples(tmp_path), **job)
    serial = check_weights(found)
    spans = [span for span in found.spans if span.kind in ("denoise", "samples")]
    assert {span.kind for span in spans} == {"samples"}
    assert {(span.first_step, span.end_step) for span in spans} == {(0, 4)}
    assert all(span.task.startswith("encode samples g") for span in spans)
    labels = {row["prompt"]: [row[own] for own in LABELS] for row in rows_with_samples(tmp_path)}
    for row in found.samples():
        score = labels[row["prompt"]][row["sample"]]
        assert row["reward"] == row["preferred/score"] == score
        assert row["smooth_rewards:brightness/score"] != score
    for record in found.records:
        assert "reward/preferred/score" not in record.metrics  # its mean tells nothing
        assert "reward/smooth_rewards:brightness/score" in record.metrics
        names = ["preference/accuracy", "preference/margin"] if job is not NFT else []
        assert [name for name in record.metrics if name.startswith("preference/")] == names
        for name in names:
            expected = serial.metrics[record.iteration][name]
            assert record.metrics[name] == pytest.approx(expected, rel=1e-9, abs=1e-12)
    if job is not NFT:
        learnt = [record.metrics["preference/accuracy"] for record in found.records]
        assert learnt[0] == 0.5, "the base model prefers none"
        assert learnt[-1] > 0.5


@pytest.mark.parametrize("job", [DPO | EMPTIED, NFT], ids=["dpo", "diffusion_nft"])
def test_bodies_make_the_serial_loops_weights(job, tree, tmp_path):
    changes = {**JOB, "rollout.fragment_size": 2, **write_samples(tmp_path), **job}
    changes["algorithm"] = {**job["algorithm"], "old_policy_decay": "none"}
    config = RunConfig.model_validate(merged(tree, changes))
    weights, _ = train_in_process(config, tmp_path)
    expected = reference(config)
    assert distance(expected.weights, initial(config)) > 1e-3
    assert distance(weights, expected.weights) < TOLERANCE["float64"]


@pytest.mark.ci
def test_prompts_that_are_emptied_make_other_weights_of_the_same_rewards(tree, tmp_path):
    """All of the rest is the same draws."""
    changes = {**JOB, **write_samples(tmp_path), **DPO}
    told, untold = (
        reference(RunConfig.model_validate(merged(tree, changes | more))) for more in ({}, EMPTIED)
    )
    assert distance(told.weights, untold.weights) > 1e-3
    name = "reward/smooth_rewards:brightness/score"
    assert [row[name] for row in told.metrics] == [row[name] for row in untold.metrics]


@pytest.mark.operation
def test_a_run_goes_on_and_is_replayed(tree, cluster_address, prefect_backend, tmp_path):
    """In another layout, which is chosen; evaluations generate, and a reward judges both."""
    from flows.post_train import post_train

    settings = {**RESUMED, **write_samples(tmp_path)}
    settings["rewards"] = {**settings["rewards"], "smooth_rewards:brightness": 0.1}
    settings |= {
        "algorithm": {"type": "diffusion_nft", "trained_fraction": 0.75},
        **EMPTIED,
        "tracking.keep_trajectories": 5,
        "tracking.keep_images": "all",
        "checkpoints.keep_every": 1,
        "cluster.scheduler_address": cluster_address(1, 1),
    }

    def config_of(layout: str) -> RunConfig:
        return RunConfig.model_validate(merged(tree, {**settings, "schedule.layout": layout}))

    stop_before_checkpoint(3, config_of("disaggregated"))
    run_dir = only_run(tree)
    report = post_train(config_of("auto"), str(run_dir))
    assert set(report.after.rewards) == {"reward", "smooth_rewards:brightness/score"}
    check_run(run_dir, config_of("auto"))
    kept = kept_iteration(run_dir, replay_config(run_dir, {}), 3)
    assert replay(run_dir, kept).difference < TOLERANCE["float64"]
    rows = read_samples(run_dir / "samples").to_pylist()
    assert all((run_dir / row["image"]).is_file() for row in rows)
