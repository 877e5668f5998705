"""Whole runs whose rollouts are in float8: the weights of the serial loop, which samples so, too.

In float64 products of float8 numbers are exact, so samples do not depend on their fragments. In
float32 the rounding of a sum now and then moves a number to the next one of float8, as it moves
log-probs by 1e-7 elsewhere: such runs are of whole groups, of the serial loop's batches.
"""

import pytest

from support.layout_runs import Case, check_weights, marked

pytestmark = pytest.mark.ci

CORRECTED = {"rollout.precision": "float8", "algorithm.correction": "truncate"}
BRANCHES = {  # the reference policy is asked in the model's own precision
    **CORRECTED,
    "rollout.branches": 2,
    "rollout.solver": "dpmpp_2m",
    "schedule.reference": "generation",
    "algorithm.window": [1, 0, 2],
    "algorithm.window_drawn_for": "group",
    "algorithm.kl_coefficient": 0.1,
}
CASES = [
    (Case("elastic", (2, 1), 2, 3, helping=True, pauses=True), BRANCHES),
    (Case("tcss", (2, 1), 4, 8, helping=True, share=0.5), BRANCHES),
    (Case("colocated", (2,), 4, 3), {**CORRECTED, "train.lora": None}),
    (Case("tcss", (2, 2), 1, 3, helping=True, share=1.0), CORRECTED),
    (Case("tag", (1, 2), 2, 8, helping=True), {**CORRECTED, "algorithm.kl_reward": 20.0}),
    (
        Case("tsp", (2, 1), 2, 3),
        {
            "rollout.precision": "float8",
            "algorithm": {"type": "diffusion_nft", "trained_fraction": 0.75},
        },
    ),
    (
        Case("gap", (2, 1), 2, 3),
        {
            "rollout.precision": "float8",
            "algorithm": {"type": "dgpo", "num_levels": 2, "trained_fraction": 0.75},
        },
    ),
    (Case("disaggregated", (1, 1), 4, 8, dtype="float32"), CORRECTED),
]


@pytest.mark.parametrize(("case", "changes"), marked(CASES, (0,), "layouts"), ids=str)
def test_weights_equal_the_serial_reference(case, changes, run_layout):
    found = run_layout(case, **changes)
    check_weights(found)
    for record in found.records:
        metrics = record.metrics
        if found.config.trains_clean or metrics["staleness/mean"] == 1:
            assert "train/mean_replay_error" not in metrics
            continue
        mean, largest = metrics["train/mean_replay_error"], metrics["train/replay_error"]
        assert 1e-6 < mean < largest < 5e-2
    if case.helping:
        assert found.num_by_others("denoise", "rollout") or case.layout != "tag"
