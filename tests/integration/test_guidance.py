"""Guidance in an interval of noise levels, through Prefect and Dask: the serial loop's weights."""

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
