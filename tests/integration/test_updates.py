"""Several updates of an iteration under every layout: weights are those of the serial loop."""

import math
from collections import Counter
from itertools import accumulate

import pytest

from digen_core.checkpoints.manifest import CHECKPOINTS_OF_RUN, checkpoints_in, name_of
from digen_core.control.layout import LAYOUTS
from support.layout_runs import HUGE, Case, check_weights, marked

pytestmark = pytest.mark.ci

FAR = {"train.learning_rate": 1e-2, "algorithm.clip_range": 1e-4}  # so that the clip acts
GROUPS = {"train.updates_per_iteration": 3}
SAMPLES = {"train.updates_per_iteration": 2, "train.dealt_by": "samples"}
EPOCHS = {"train.updates_per_iteration": 6, "train.epochs": 2}
BOTH = {"train.updates_per_iteration": 8, "train.epochs": 2, "train.dealt_by": "samples"}
PAIRS = {**EPOCHS, "rollout.prompts_per_iteration": 4, "train.updates_per_iteration": 4}
QUARTERS = {"train.updates_per_iteration": 4, "rollout.prompts_per_iteration": 4}

CASES = [
    (Case("colocated", (2,), 4, 3, pauses=True), GROUPS),
    (Case("colocated", (3,), 2, 8, dtype="float32"), BOTH),
    (Case("colocated-strong", (3,), 2, 3, pauses=True), EPOCHS),
    (Case("colocated-strong", (2,), 1, 8, dtype="float32"), SAMPLES),
    (Case("disaggregated", (1, 2), 4, 3, pauses=True), SAMPLES),
    (Case("disaggregated", (2, 2), 2, 1, dtype="float32"), EPOCHS),
    (Case("gap", (1, 1), 2, 3, pauses=True), GROUPS),
    (Case("gap", (2, 2), 4, 8, dtype="float32"), BOTH),
    (Case("tsp", (2, 1), 1, 3, pauses=True), EPOCHS),
    (Case("tsp", (1, 2), 4, 1, dtype="float32"), SAMPLES),
    (Case("tag", (2, 2), 1, 8, helping=True, pauses=True), GROUPS),
    (Case("tag", (1, 1), 4, 3, helping=True, dtype="float32"), BOTH),
    (Case("elastic", (3, 1), 2, 3, helping=True, pauses=True, dtype="float32"), GROUPS),
    (Case("elastic", (2, 2), 4, 1, helping=True), BOTH),
    (Case("tcss", (2, 2), 2, 3, helping=True, pauses=True, share=1.0), SAMPLES),
    (Case("tcss", (1, 1), 4, 8, share=0.5, dtype="float32"), EPOCHS),
]
OFTEN = (14,)  # colocated devices: `test_some_updates_of_an_iteration_are_skipped`


@pytest.mark.parametrize(("case", "changes"), marked(CASES, OFTEN, "layouts"), ids=str)
def test_weights_equal_the_serial_reference(case, changes, run_layout):
    found = run_layout(case, **changes, **FAR)
    updates = changes["train.updates_per_iteration"]
    check_weights(found, version=3 * updates)
    ends = range(0, 3 * updates, updates)
    versions = found.versions()
    assert set(versions.values()) <= set(ends), "a version between two updates generated"
    assert all(updates * (i - bool(case.share)) <= v for (i, _), v in versions.items())
    rows = [record.metrics for record in found.records]
    for row in rows:
        check_metrics(row, updates)
    assert max(row["train/clip_fraction"] for row in rows) > 0, "the clip does not act"


def check_metrics(row: dict[str, float], updates: int) -> None:
    """The first update is on-policy but for stale groups; the ratios of the others are not 1."""
    clipped = [row[f"update-{number + 1}/clip_fraction"] for number in range(updates)]
    assert f"update-{updates + 1}/clip_fraction" not in row
    assert math.isclose(sum(clipped) / updates, row["train/clip_fraction"])
    if not row["staleness/mean"] > (updates - 1) / 2:
        assert clipped[0] == 0
    assert row[f"update-{updates}/max_log_ratio"] > 1e-4, "the ratios are 1"
    assert row["staleness/max"] >= updates - 1


def test_every_layout_is_there_with_groups_or_samples_and_epochs():
    assert {case.layout for case, _ in CASES} == set(LAYOUTS)


NFT = {"type": "diffusion_nft", "beta": 0.5, "trained_fraction": 0.5}
LAGGING = {**NFT, "old_policy_decay": "ramp"}
CORRECTED = {"correction": "truncate", "correction_bounds": (0.5, 1.0001), "clip_range": 1e-4}
GUARD = {"type": "grpo_guard", "clip_range": 1e-6}
DPPO = {"type": "flow_dppo", "correction": "icepop", "max_divergence": 1e-9}
AWM = {
    "type": "awm",
    "num_levels": 2,
    "first_level": 0,
    "trained_fraction": 1.0,
    "clip_range": 0.01,
}
DANCE = {"type": "dance_grpo", "steps_drawn_for": "sample", "trained_fraction": 0.7}
DELTAS = {"schedule.push": "delta"}  # of a version without what generated beside it
DGPO = {"type": "dgpo", "num_levels": 2, "trained_fraction": 1.0}
GENERATED = {"schedule.reference": "generation"}  # once, for all epochs
KL = {"kl_coefficient": 0.5, "clip_range": 1e-4}
COMPARING = [
    (Case("elastic", (2, 2), 2, 3, helping=True, pauses=True), SAMPLES, NFT),
    (Case("tcss", (2, 1), 2, 8, share=1.0), BOTH, LAGGING),
    (Case("colocated-strong", (2,), 4, 3), GROUPS, {**LAGGING, "own_levels": True}),
    (Case("gap", (1, 2), 2, 8, dtype="float32"), EPOCHS, NFT),
    (Case("tag", (2, 2), 2, 3, helping=True), {**GROUPS, **DELTAS}, CORRECTED),
    (Case("tcss", (1, 2), 4, 8, share=0.5), SAMPLES, CORRECTED),
    (Case("disaggregated", (1, 1), 4, 8, dtype="float32"), EPOCHS, DPPO),
    (Case("tsp", (2, 2), 2, 3), BOTH, {**AWM, "old_policy_decay": "low_ramp"}),
    (Case("elastic", (1, 2), 4, 1), GROUPS, AWM),
    (Case("tsp", (2, 1), 2, 3), {**EPOCHS, **GENERATED}, {**AWM, "own_levels": True}),
    (Case("elastic", (2, 2), 2, 3), BOTH, {**AWM, "own_levels": True}),
    (Case("tcss", (1, 2), 2, 3, share=1.0), EPOCHS, {**LAGGING, "own_levels": True}),
    (Case("elastic", (2, 1), 2, 3), SAMPLES, {**DGPO, "old_policy_decay": "low_ramp"}),
    (Case("gap", (2, 1), 2, 3), GROUPS, {**DGPO, "type": "dpo"}),
    (Case("tcss", (2, 1), 2, 3, share=1.0), BOTH, {**DANCE, "clip_range": 1e-4}),
    (Case("tsp", (1, 2), 2, 3), {**EPOCHS, **GENERATED}, KL),
    (Case("elastic", (2, 1), 2, 3), {**SAMPLES, **GENERATED}, {**DANCE, **KL}),
    (Case("elastic", (2, 2), 2, 3, helping=True), PAIRS, GUARD),
    (Case("gap", (2, 1), 2, 3, pauses=True), QUARTERS, GUARD),
    (Case("tcss", (1, 2), 2, 3, share=1.0), QUARTERS, {**GUARD, "clip_range": 1e-4}),
]


@pytest.mark.parametrize(
    ("case", "changes", "algorithm"), marked(COMPARING, (), "layouts"), ids=str
)
def test_losses_compare_with_what_the_iteration_began_with(case, changes, algorithm, run_layout):
    """Not with the trained version, which is another one in all updates but the first."""
    far = {"train.learning_rate": 1e-2, "algorithm": {"trained_fraction": 0.5, **algorithm}}
    found = run_layout(case, **changes, **far)
    check_weights(found, version=3 * changes["train.updates_per_iteration"])


SKIPPING = [
    (Case("elastic", (2, 2), 2, 3, helping=True, pauses=True), GROUPS),
    (Case("colocated", (2,), 4, 3), GROUPS),
    (Case("tcss", (2, 2), 2, 3, share=1.0), GROUPS),
    (Case("gap", (1, 2), 2, 3), GROUPS),
]


@pytest.mark.parametrize(("case", "changes"), marked(SKIPPING, (), "layouts"), ids=str)
def test_some_updates_of_an_iteration_are_skipped(case, changes, run_layout):
    """Each of the three has one group; those of one prompt overflow."""
    run = run_layout(case, **changes, **HUGE)
    huge = Counter(
        row["iteration"]
        for row in run.samples()
        if "triangle" in row["prompt"] and row["sample"] == 0
    )
    skipped = [int(record.metrics["numerics/skipped_updates"]) for record in run.records]
    assert skipped == [huge[index] for index in range(5)]
    assert sum(skipped) > 0
    made = list(accumulate(3 - own for own in skipped))
    assert [record.version for record in run.records] == made
    check_weights(run, version=made[-1])
    names = [path.name for path in checkpoints_in(run.folder / CHECKPOINTS_OF_RUN)]
    assert names == [name_of(version) for version in made[-2:]]
    assert set(run.versions().values()) <= {0, *made}
