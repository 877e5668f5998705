"""Guidance by noise level, or in training alone, through Prefect and Dask: the serial weights."""

import pytest

from support.families import NEGATIVE, TOKENS, load_tiny
from support.layout_runs import Case, check_weights

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(Case("tsp", (2, 1), 4, 4), marks=pytest.mark.layouts),
        pytest.param(Case("elastic", (2, 1), 2, 3, helping=True), marks=pytest.mark.layouts),
        pytest.param(Case("tcss", (1, 2), 2, 8, share=1.0), marks=pytest.mark.layouts),
    ],
    ids=str,
)
def test_weights_equal_the_serial_reference(case, tiny_families, run_layout):
    run = run_layout(
        case,
        **{
            "model.family": "sd3",
            "model.path": tiny_families["sd3"],
            "model.max_sequence_length": TOKENS,
            "model.guidance_scale": 1.0,
            "model.guidance_schedule": [[0.99, 3.0], [0.8, 2.0]],
            "model.negative_prompt": NEGATIVE,
            "rewards": {"smooth_rewards:brightness": {"weight": 1.0}},
            "algorithm": {"trained_fraction": 1.0, "kl_coefficient": 0.1},
        },
    )
    check_weights(run)
    policy = load_tiny(tiny_families["sd3"], "sd3")
    levels = policy.sigmas(run.config.rollout.num_steps)[:-1].tolist()
    scales = {run.config.model.guidance_at(level) for level in levels}
    assert scales == {None, 3.0, 2.0}, levels
    if case.fragment == case.pack:  # replayed in the batch of the rollout
        assert all(record.metrics["train/max_log_ratio"] == 0 for record in run.records)


PREFERENCES = {"num_levels": 2, "trained_fraction": 0.75, "kl_coefficient": 0.1}
ALONE = {"model.guidance_scale": 1.0, "model.train_guidance_scale": 3.0}
IN_SAMPLES = {
    "model.guidance_scale": 1.0,
    "model.guidance_schedule": [[0.99, 3.0]],
    "model.train_guidance_scale": 1.0,
}
OF_REFERENCE = {"model.guidance_scale": 1.0, "model.reference_guidance_scale": 3.0}


@pytest.mark.parametrize(
    ("case", "changes"),
    [
        pytest.param(
            Case("tsp", (2, 1), 4, 4),
            ALONE | {"algorithm": {"type": "diffusion_nft", "trained_fraction": 0.75}},
            id="tsp-training",
            marks=pytest.mark.layouts,
        ),
        pytest.param(
            Case("tcss", (1, 2), 2, 8, share=1.0),
            ALONE | {"algorithm": {"type": "dpo", **PREFERENCES}, "schedule.reference": "training"},
            id="tcss-training",
            marks=pytest.mark.layouts,
        ),
        pytest.param(
            Case("elastic", (2, 1), 2, 3, helping=True),
            IN_SAMPLES
            | {
                "algorithm": {"type": "dgpo", **PREFERENCES, "old_policy_decay": "low_ramp"},
                "schedule.reference": "generation",
                "train.updates_per_iteration": 3,
            },
            id="elastic-samples",
            marks=pytest.mark.layouts,
        ),
        pytest.param(
            Case("elastic", (2, 1), 2, 3, helping=True),
            OF_REFERENCE
            | {
                "algorithm": {"type": "dgpo", **PREFERENCES, "old_policy_decay": "low_ramp"},
                "schedule.reference": "generation",
            },
            id="elastic-reference",
            marks=pytest.mark.layouts,
        ),
        pytest.param(
            Case("tag", (2, 1), 2, 4, helping=True),
            OF_REFERENCE
            | {
                "algorithm": {"trained_fraction": 1.0, "kl_coefficient": 0.1, "kl_reward": 0.1},
                "schedule.reference": "training",
            },
            id="tag-reference",
            marks=pytest.mark.layouts,
        ),
    ],
)
def test_training_has_a_guidance_of_its_own(case, changes, tiny_families, run_layout):
    """The other way round, too: samples are guided and training is not, as DGPO's are."""
    run = run_layout(
        case,
        **{
            "model.family": "sd3",
            "model.path": tiny_families["sd3"],
            "model.max_sequence_length": TOKENS,
            "model.negative_prompt": NEGATIVE,
            "rewards": {"smooth_rewards:brightness": {"weight": 1.0}},
            **changes,
        },
    )
    check_weights(run, version=3 * run.config.train.updates_per_iteration)
