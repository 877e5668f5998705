"""Groups without signal that others take the place of: the weights of the serial loop."""

import pytest

from support.layout_runs import Case, check_weights, marked

pytestmark = pytest.mark.ci

REFILLED = {
    "rewards": {"smooth_rewards:partly_equal": 1.0},
    "rollout.refill": 2,
    "num_iterations": 3,
}
BATCH = {"algorithm.advantage_scale": "batch"}
CASES = [
    (Case("tcss", (2, 1), 2, 3, helping=True, share=1.0), {}),
    (Case("colocated", (3,), 2, 3), BATCH),
    (Case("tag", (1, 2), 1, 3, helping=True, pauses=True), {}),
    (Case("disaggregated", (2, 2), 4, 8), BATCH),
    (Case("elastic", (3, 1), 2, 3, helping=True), {}),
]


@pytest.mark.parametrize(("case", "changes"), marked(CASES, (0,), "layouts"), ids=str)
def test_groups_without_signal_are_replaced(case, changes, run_layout):
    run = run_layout(case, **REFILLED, **changes)
    check_weights(run)
    rows = run.samples()
    refilled = [record.metrics["groups/refilled"] for record in run.records]
    skipped = [record.metrics["groups/zero_variance"] for record in run.records]
    assert sum(refilled) > 0, "no group was without signal, so the test would show nothing"
    size = run.config.rollout.group_size
    count = run.config.rollout.prompts_per_iteration
    assert len(rows) == size * (len(run.records) * count + sum(refilled))
    assert sum(row["trained"] for row in rows) == size * (len(run.records) * count - sum(skipped))
    for row in rows:
        assert row["trained"] == ("circle" not in row["prompt"])
