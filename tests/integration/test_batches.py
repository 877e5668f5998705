"""Batches of several groups: the weights of the serial loop, in every layout."""

import pytest

from support.layout_runs import RELATIVE, Case, check_weights, marked

pytestmark = pytest.mark.slow

KL = {
    "algorithm": {"type": "grpo_guard", "kl_coefficient": 0.1},
    "schedule.reference": "generation",
}
KL_REWARD = {"algorithm.kl_reward": 0.1}
SCREENED = {"rollout.screening": {"candidates": 7, "num_steps": 2}}
ODE = {"algorithm": {"type": "diffusion_nft"}, "rollout.solver": "dpmpp_2m"}
MARGINS = {"algorithm": {"type": "dgpo", "num_levels": 2, "trained_fraction": 1.0}}
REFILLED = {"rewards": {"smooth_rewards:partly_equal": 1.0}, "rollout.refill": 2}
CASES = [
    (Case("tag", (2, 1), 2, 3, helping=True, pauses=True), 6, {}),
    (Case("tcss", (2, 1), 4, 3, helping=True, share=1.0), 8, {}),
    (Case("elastic", (1, 2), 4, 8, helping=True), 12, REFILLED),
    (Case("colocated", (2,), 1, 3), 7, {}),
    (Case("colocated-strong", (1,), 4, 3, pauses=True), 12, SCREENED),
    (Case("disaggregated", (1, 1), 4, 3), 12, ODE),
    (Case("gap", (2, 1), 2, 3, steps_per_task=2), 8, MARGINS),
    (Case("tsp", (1, 1), 4, 8, pauses=True, dtype="float32"), 12, KL),
    (Case("gap", (1, 1), 4, 3), 8, {"rewards": RELATIVE}),
]


@pytest.mark.parametrize(("case", "size", "changes"), marked(CASES, (0,), "layouts"), ids=str)
def test_groups_in_one_batch_give_the_weights_of_the_serial_loop(case, size, changes, run_layout):
    run = run_layout(case, **{"rollout.batch_size": size, **changes})
    check_weights(run)
    _check_batches(run)


def _check_batches(run) -> int:
    """Some batches are of several groups, none is too large, and each step is done once."""
    spans = [span for span in run.spans if span.kind == "denoise"]
    config, done = run.config, set()
    for span in spans:
        assert span.num_items <= config.rollout.batch_size
        assert len(span.fragments) <= config.batch_size // config.fragment_size
        for group, fragment in span.fragments:
            for step in range(span.first_step, span.end_step):
                place = span.iteration, group, fragment, step
                assert place not in done, "a step was done twice"
                done.add(place)
    assert any(len({group for group, _ in span.fragments}) > 1 for span in spans)
    return len(spans)
