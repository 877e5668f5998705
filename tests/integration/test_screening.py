"""Samples that stand for chosen candidates: the weights of the serial loop, in every layout."""

from collections import defaultdict

import pytest

from digen_core.reference.replay import kept_iteration
from support.layout_runs import MAX_WORKERS, ODD, Case, check_weights, marked, run_case
from support.runs import TOLERANCE, with_own_steps
from tasks.replay import replay

pytestmark = pytest.mark.ci

CANDIDATES = 7
FEW_STEPS = {"rollout.screening": {"candidates": CANDIDATES, "num_steps": 2}}
IN_FLOAT8 = {"rollout.screening": {"candidates": CANDIDATES, "precision": "float8"}}
NFT = {"algorithm.type": "diffusion_nft"}
GUARD = {
    "algorithm": {"type": "grpo_guard", "clip_range": 1e-4},
    "tracking.keep_trajectories": "all",
    "checkpoints.keep_every": 1,
}
DPPO = {
    "algorithm": {"type": "flow_dppo"},
    "train.updates_per_iteration": 3,
    "train.learning_rate": 1e-2,
}
"""Both draw the noise of trained steps again."""
AS_SAMPLES = {"rollout.screening": {"candidates": CANDIDATES}}
SOMETIMES_NONE = {"rewards": {"odd": ODD["rewards"]["odd"]}}
REFILLED = {"rewards": {"smooth_rewards:partly_equal": 1.0}, "rollout.refill": 2}
WINDOW = {
    "algorithm": {
        "type": "mix_grpo",
        "window_size": 2,
        "untrained_tail": 1,
        "iterations_per_window": 1,
    }
}
"""More steps are trained than a candidate has."""
CASES = [
    (Case("tag", (2, 1), 2, 3, helping=True, pauses=True), IN_FLOAT8),
    (Case("tcss", (2, 1), 2, 3, helping=True, share=1.0), FEW_STEPS),
    (Case("colocated", (3,), 2, 3), IN_FLOAT8),
    (Case("elastic", (2, 2), 2, 3, helping=True), FEW_STEPS | REFILLED),
    (Case("disaggregated", (2, 2), 4, 8), FEW_STEPS | {"algorithm.advantage_scale": "batch"}),
    (Case("gap", (2, 1), 1, 3), IN_FLOAT8),
    (Case("tsp", (1, 2), 2, 3), FEW_STEPS),
    (Case("colocated-strong", (2,), 2, 3), FEW_STEPS),
    (Case("tsp", (2, 1), 2, 3), FEW_STEPS | WINDOW),
    (Case("tag", (2, 1), 2, 3, helping=True), FEW_STEPS | SOMETIMES_NONE | {"rollout.refill": 1}),
    (Case("tsp", (2, 1), 2, 3, pauses=True), FEW_STEPS | GUARD),
    (Case("elastic", (2, 1), 2, 3, helping=True), AS_SAMPLES | DPPO),
]


@pytest.mark.parametrize(("case", "changes"), marked(CASES, (0, 10), "layouts"), ids=str)
def test_samples_that_stand_for_candidates_give_the_weights_of_the_serial_loop(
    case, changes, run_layout
):
    run = run_layout(case, **changes)
    check_weights(run, version=3 * run.config.train.updates_per_iteration)
    _check_rows(run)
    if run.config.tracking.keep_trajectories:
        kept = kept_iteration(run.folder, run.config, 1)
        assert replay(run.folder, kept).difference < TOLERANCE["float64"]
    spans = [span for span in run.spans if span.kind == "score" and span.num_items]
    assert any(span.group < run.config.rollout.prompts_per_iteration for span in spans)


@pytest.mark.layouts
def test_a_candidate_is_the_sample_that_stands_for_it(run_layout):
    """In the model's precision, and with as many steps: to the last digits."""
    run = run_layout(Case("tag", (2, 1), 2, 3, helping=True), **AS_SAMPLES)
    _check_rows(run)
    for row in run.samples():
        assert row["reward"] == pytest.approx(row["screened_reward"], rel=1e-9)
    for record in run.records:
        assert record.metrics["screening/rank_correlation"] == pytest.approx(1)
        assert record.metrics["screening/reward"] != record.metrics["reward/mean"]


@pytest.mark.layouts
@pytest.mark.parametrize("num_steps", [3, None])
def test_candidates_take_no_more_steps_than_their_prompt(
    num_steps, tree, four_workers, monkeypatch
):
    """Prompts have two, three or four of their own."""
    four_workers.wait_for_workers(MAX_WORKERS, timeout=240)
    screening = {"candidates": CANDIDATES, "num_steps": num_steps}
    case, address = Case("tag", (2, 1), 2, 3, helping=True), four_workers.scheduler.address
    changes = {"rollout.screening": screening, "algorithm": {"type": "diffusion_nft"}}
    run = run_case(case, with_own_steps(tree), address, monkeypatch, **changes)
    check_weights(run)
    spans = [span for span in run.spans if span.kind == "denoise"]
    count = run.config.rollout.prompts_per_iteration
    ends = {True: {}, False: {}}
    for span in spans:
        of_kind = ends[span.group < count]
        place = span.iteration, span.group % count
        of_kind[place] = max(of_kind.get(place, 0), span.end_step)
    assert len(set(ends[False].values())) > 1
    most = num_steps or max(ends[False].values())
    assert ends[True] == {place: min(most, end) for place, end in ends[False].items()}


def _check_rows(run):
    """Each sample of a group stands for another candidate, and candidates have no rows."""
    groups = defaultdict(list)
    for row in run.samples():
        groups[row["iteration"], row["group"]].append(row)
    config = run.config.rollout
    for (_, group), rows in groups.items():
        assert not config.screens(group)
        chosen = [row["candidate"] for row in rows]
        assert chosen == sorted(set(chosen)), "each stands for another candidate"
        assert 0 <= chosen[0] <= chosen[-1] < CANDIDATES
        assert len(rows) == config.group_size
    for record in run.records:
        assert -1 <= record.metrics.get("screening/rank_correlation", 0) <= 1
