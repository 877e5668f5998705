"""NaN and Inf under every layout: dropped and skipped is what the serial loop drops and skips."""

from pathlib import Path
from statistics import mean

import pytest
import torch
from diffusers import DiffusionPipeline

from deployments.cli import run as digen
from digen_core.config.combinations import WITH_BARRIER
from digen_core.config.run import RunConfig
from digen_core.reference.replay import kept_iteration
from flows.runtime.fleet.task_set import TaskFailedError
from flows.runtime.iterations.patience import OutOfPatienceError
from flows.runtime.observers import watching
from support.layout_runs import HUGE, Case, check_weights, marked, train_only
from support.runs import TOLERANCE, Watch, merged, only_run
from tasks.replay import replay

pytestmark = pytest.mark.slow

CASES = [
    Case("tcss", (2, 1), 2, 3, helping=True, share=1.0),
    Case("colocated", (3,), 2, 3),
    Case("elastic", (3, 1), 1, 8, helping=True),
    Case("tag", (1, 2), 4, 3, helping=True, pauses=True),
    Case("disaggregated", (2, 2), 1, 1),
    Case("colocated-strong", (2,), 4, 8),
]
JOB = {
    "rollout.refill": 1,
    "num_iterations": 3,
    "rollout.prompts_per_iteration": 3,
    "tracking.keep_trajectories": "all",
    "checkpoints.keep_every": 1,
}


def per_case(place: int):
    """Every case, of which all but one are left to ``make test-layouts``."""
    return pytest.mark.parametrize("case", marked(CASES, (place,), "layouts"), ids=str)


def job_of(case: Case) -> dict:
    """The job; where the layout waits for all rewards, the scale is that of the batch."""
    waits = case.layout in WITH_BARRIER
    return {**JOB, "algorithm.advantage_scale": "batch" if waits else "group"}


def check_dropped(run, is_bad) -> None:
    """Groups that lack a number are not trained, nor counted; others take their place."""
    check_weights(run)
    rows = run.samples()
    bad = {(row["iteration"], row["group"]) for row in rows if is_bad(row)}
    groups = {(row["iteration"], row["group"]) for row in rows}
    trained = {(row["iteration"], row["group"]) for row in rows if row["trained"]}
    assert bad, "nothing is dropped, so the test would show nothing"
    assert trained == {g for g in groups if g not in bad}
    for index, record in enumerate(run.records):
        found, own = record.metrics, {group for group in bad if group[0] == index}
        assert found["numerics/dropped_groups"] == len(own)
        assert found["groups/zero_variance"] == found["numerics/skipped_updates"] == 0
        places = {(index, group) for _, group in groups} & (groups - bad)
        kept = [row["reward"] for row in rows if (row["iteration"], row["group"]) in places]
        assert found["reward/mean"] == pytest.approx(mean(kept))
        again = replay(run.folder, kept_iteration(run.folder, run.config, index))
        assert again.difference < TOLERANCE["float64"]


@pytest.mark.ci
@per_case(0)
def test_groups_without_a_score_are_dropped(case, run_layout):
    reward = {"type": "function", "function": "smooth_rewards:sometimes_none"}
    rewards = {"odd": {**reward, "on_failure": "drop"}}
    run = run_layout(case, **job_of(case), rewards=rewards)
    check_dropped(run, lambda row: row["odd/failed"])
    assert {row["odd/failed"] for row in run.samples()} == {0.0, 1.0}


@pytest.fixture
def broken_model(tiny_flux, tmp_path) -> str:
    """A model whose embedding of one word is NaN, so that latents become NaN at the first step."""
    pipeline = DiffusionPipeline.from_pretrained(tiny_flux)
    token = pipeline.tokenizer_2("triangles").input_ids[0]
    with torch.no_grad():
        pipeline.text_encoder_2.get_input_embeddings().weight[token] = torch.nan
    pipeline.save_pretrained(tmp_path / "broken")
    return str(tmp_path / "broken")


@pytest.mark.nightly
@per_case(1)
def test_groups_with_a_latent_that_is_nan_are_dropped(case, run_layout, broken_model):
    changes = {"numerics.samples": "drop", "model.path": broken_model}
    run = run_layout(case, **job_of(case), **changes)
    check_dropped(run, lambda row: row["nonfinite"])
    for row in run.samples():
        assert bool(row["nonfinite"]) == ("triangles" in row["prompt"])
        assert row["nonfinite"] in (None, "latent at step 0 (sigma 1.0000)")


@pytest.mark.ci
@per_case(0)
def test_updates_that_overflow_are_skipped(case, run_layout):
    run = run_layout(case, **HUGE)
    skipped = [bool(record.metrics["numerics/skipped_updates"]) for record in run.records]
    huge = {row["iteration"] for row in run.samples() if "triangle" in row["prompt"]}
    assert skipped == [index in huge for index in range(5)]
    assert 0 < sum(skipped) < 5
    check_weights(run, version=5 - sum(skipped))
    assert [record.version for record in run.records] == [
        sum(not other for other in skipped[: index + 1]) for index in range(5)
    ]


def test_a_run_that_fails_says_how_to_look_into_it(
    broken_model, tree, cluster_address, prefect_backend, capsys
):
    """By default a run ends; what it kept is done again, and names the module."""
    changes = {
        "model.path": broken_model,
        "cluster.scheduler_address": cluster_address(1, 1),
    }
    Path(tree["prompts"]["train"]).write_text("two green triangles\na blue square")
    config = RunConfig.model_validate(merged(tree, changes))
    with pytest.raises(TaskFailedError, match="--nonfinite") as failure:
        train_only(config)
    run_dir = only_run(tree)
    assert "the latent at step 0 (sigma 1.0000) of sample 0 (and of 3 more)" in str(failure.value)
    assert f"digen replay {run_dir} 1 --nonfinite" in str(failure.value)
    assert digen(["replay", str(run_dir), "1", "--nonfinite"]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0].startswith("denoise: iteration 1, group ")
    assert out[1] == out[0].replace("denoise: ", "  again: ")
    assert out[2] == "  the first output that is NaN or infinite: context_embedder"
    for arguments, message in (
        ("2 --nonfinite", "keeps nothing of iteration 2 that was NaN or infinite, only of 1"),
        ("1 --nonfinite --train.pack-size 1", "train.pack_size cannot be changed where an input"),
        ("1", "has finished no iteration 1; it has none yet"),
    ):
        assert digen(["replay", str(run_dir), *arguments.split()]) == 2
        err = capsys.readouterr().err
        assert message in err
        assert err.count("\n") == 1


def test_a_run_whose_groups_are_all_dropped_learns_nothing_and_says_so(
    broken_model, tree, cluster_address, prefect_backend
):
    changes = {
        "model.path": broken_model,
        "numerics.samples": "drop",
        "num_iterations": 2,
        "cluster.scheduler_address": cluster_address(1, 1),
    }
    Path(tree["prompts"]["train"]).write_text("two green triangles\nthree red triangles")
    watch = Watch()
    with watching(watch):
        run_dir = train_only(RunConfig.model_validate(merged(tree, changes)))
    for record in watch.records:
        assert record.version == 0
        assert record.metrics["numerics/dropped_groups"] == 2
        assert record.metrics["numerics/nonfinite_samples"] == 8
        assert not {"reward/mean", "train/loss"} & record.metrics.keys()
    (warning,) = (text for text in watch.warnings if "is NaN" in text)
    assert "said once; numerics/dropped_groups counts them" in warning
    assert warning.endswith(f"digen replay {run_dir} 1 --nonfinite does it again")


@pytest.mark.ci
def test_a_run_that_has_lost_too_many_updates_ends(
    broken_model, tree, cluster_address, prefect_backend
):
    """Not with the first that is lost; the iterations are there, and nothing was trained."""
    changes = {
        "model.path": broken_model,
        "numerics.samples": "drop",
        "numerics.patience": 2,
        "num_iterations": 6,
        "cluster.scheduler_address": cluster_address(1, 1),
    }
    Path(tree["prompts"]["train"]).write_text("two green triangles\nthree red triangles")
    watch = Watch()
    with (
        watching(watch),
        pytest.raises(OutOfPatienceError, match=r"^2 iterations in a row, .* iteration 2, made"),
    ):
        train_only(RunConfig.model_validate(merged(tree, changes)))
    assert [record.version for record in watch.records][:2] == [0, 0]
