"""Batches of several groups: the weights of the serial loop, in every layout."""

import pytest

from support.families import HEIGHT, TOKENS, WIDTH, tolerance_of
from support.layout_runs import MAX_WORKERS, RELATIVE, Case, check_weights, marked, run_case
from support.runs import with_own_steps

pytestmark = pytest.mark.ci

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
    (Case("tag", (1, 1), 4, 3, helping=True), 8, KL_REWARD),
]


@pytest.mark.parametrize(("case", "size", "changes"), marked(CASES, (0,), "layouts"), ids=str)
def test_groups_in_one_batch_give_the_weights_of_the_serial_loop(case, size, changes, run_layout):
    run = run_layout(case, **{"rollout.batch_size": size, **changes})
    check_weights(run)
    _check_batches(run)


def _check_batches(run) -> None:
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


@pytest.mark.layouts
def test_of_a_model_that_attends_to_texts_alone_ratios_are_exactly_1(tiny_families, run_layout):
    """Replays are computed by the kernels of the rollout, whatever was beside a sample."""
    model = {
        "model.family": "qwen_image",
        "model.path": tiny_families["qwen_image"],
        "model.height": HEIGHT,
        "model.width": WIDTH,
        "model.max_sequence_length": TOKENS,
    }
    run = run_layout(Case("disaggregated", (1, 1), 4, 4), **model, **{"rollout.batch_size": 12})
    check_weights(run, tolerance_of("qwen_image"))
    _check_batches(run)
    assert all(record.metrics["train/max_log_ratio"] == 0 for record in run.records)


@pytest.mark.layouts
def test_batches_of_several_sizes_and_steps_are_those_of_each(tree, four_workers, monkeypatch):
    """Of samples that cost the same some are of another size: they are denoised apart."""
    told = []
    monkeypatch.setattr("flows.runtime.notify.notify", lambda run, event, text: told.append(event))
    four_workers.wait_for_workers(MAX_WORKERS, timeout=240)
    case, address = Case("elastic", (1, 1), 4, 3, helping=True), four_workers.scheduler.address
    sizes = [[16, 48, 1], [48, 16, 1], [32, 32, 1], [32, 32, 1]]
    changes = {"rollout.batch_size": 16, "model.sizes": sizes, "rollout.prompts_per_iteration": 6}
    run = run_case(case, with_own_steps(tree), address, monkeypatch, **changes)
    check_weights(run)
    _check_batches(run)
    spans = [span for span in run.spans if span.kind == "denoise"]
    together = [
        {run.config.size_of(span.iteration, group) for group, _ in span.fragments} for span in spans
    ]
    assert max(map(len, together)) == 2
    assert all(len(own) == 1 or (32, 32, 1) not in own for own in together)
    assert told.count("batch-apart") == 1
