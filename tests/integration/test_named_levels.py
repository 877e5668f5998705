"""Noise levels that a config names, through Prefect and Dask: the serial loop's weights."""

import json

import pytest

from digen_core.config.run import RunConfig
from support.edits import picture
from support.families import DISTILLED, LEVELS, TOKENS
from support.layout_runs import Case, check_weights
from support.runs import distance, merged, reference

pytestmark = pytest.mark.ci

NAMED = [1.0, 0.975, 0.725, 0.421875]


@pytest.mark.parametrize(
    ("case", "algorithm"),
    [
        pytest.param(Case("tsp", (2, 1), 4, 4), {"kl_coefficient": 0.1}),
        pytest.param(
            Case("elastic", (2, 1), 2, 3, helping=True),
            {"type": "diffusion_nft", "trained_fraction": 0.75},
            marks=pytest.mark.layouts,
        ),
        pytest.param(
            Case("tcss", (1, 2), 2, 8, share=1.0),
            {"kl_coefficient": 0.1},
            marks=pytest.mark.layouts,
        ),
    ],
    ids=str,
)
def test_weights_equal_the_serial_reference(case, algorithm, run_layout):
    """And are others than those of the family's own schedule."""
    changes = {"model.sigmas": NAMED, "evaluation.num_steps": 4, "algorithm": algorithm}
    run = run_layout(case, **changes)
    check_weights(run)
    if case.fragment == case.pack:  # replayed in the batch of the rollout
        assert all(record.metrics["train/max_log_ratio"] == 0 for record in run.records)
    plain = RunConfig.model_validate(merged(run.config.model_dump(), {"model.sigmas": []}))
    named, other = reference(run.config), reference(plain)
    assert distance(named.weights, other.weights) > 1e-4


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(Case("tsp", (2, 1), 4, 4), marks=pytest.mark.families),
        pytest.param(Case("elastic", (2, 1), 2, 3, helping=True), marks=pytest.mark.layouts),
    ],
    ids=str,
)
def test_models_that_are_told_where_steps_end(case, tiny_families, run_layout, tmp_path):
    """Rollout and training tell them the same, whichever steps are in a pack."""
    texts = ("a red circle", 'a sign "go"', "two blue squares", "a dog")
    for seed in range(len(texts)):
        (tmp_path / f"{seed}.png").write_bytes(picture(seed))
    rows = [{"prompt": text, "image": f"{seed}.png"} for seed, text in enumerate(texts)]
    (tmp_path / "films.jsonl").write_text("\n".join(map(json.dumps, rows)))
    run = run_layout(
        case,
        **{
            "model.family": "hunyuan_video15",
            "model.path": tiny_families[DISTILLED],
            "model.num_frames": 5,
            "model.max_sequence_length": TOKENS,
            "model.guidance_scale": 1.0,
            "model.sigmas": LEVELS,
            "evaluation.num_steps": 4,
            "prompts": {
                "train": str(tmp_path / "films.jsonl"),
                "image_column": "image",
                "evaluation_fraction": 0.25,
            },
            "num_iterations": 2,
            "rollout.prompts_per_iteration": 2,
            "algorithm": {"trained_fraction": 0.75},
        },
    )
    check_weights(run, version=2)
    if case.fragment == case.pack:
        assert all(record.metrics["train/max_log_ratio"] == 0 for record in run.records)
