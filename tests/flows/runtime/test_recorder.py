"""The record of an iteration, from hand-made receipts."""

from dataclasses import replace

import numpy as np
import pytest

from digen_core.config.run import RunConfig
from digen_core.control.protocol import Device, Fragment
from digen_core.control.schedule import StaleGroups
from digen_core.data.prompts import Prompt
from digen_core.errors import UserError
from digen_core.records import Span
from digen_core.trace.gaps import CAUSES
from digen_core.trace.utilization import Arithmetic
from digen_core.training.advantages import Advantages
from flows.runtime.iterations.recorder import IterationRecorder
from flows.runtime.iterations.round import Ended, Round
from support.batches import alone
from support.contexts import run_context
from tasks.receipts import Denoised, Ran, Receipt, Sampled, Scored, Updated

FIRST, SECOND = Fragment(4, 0, 0, 0, 2), Fragment(4, 0, 1, 2, 2)
THIRD = Fragment(4, 1, 0, 0, 4)
PROMPTS = [Prompt("a red circle", {"tag": 7}), Prompt("a blue square")]
ROUND = Round(4, PROMPTS)


@pytest.fixture
def run(tmp_path):
    devices = [Device("rollout-0", frozenset({"rollout"})), Device("trainer-0", frozenset())]
    run = run_context(tmp_path, RunConfig(seed=9), devices)
    run.fleet.num_lost, run.fleet.num_joined = 2, 1
    return run


def add(run, it, span):
    run.trace.end(span, span)
    it.add_span(span)


def receipt(facts, seconds=1.0):
    return Receipt(Ran("rollout-0", started=0.0, ended=seconds, num_bytes=0), facts)


@pytest.fixture
def recorder(run):
    """An iteration of two groups of four; the second has equal rewards."""
    it = IterationRecorder(run, ROUND)
    spans = [
        ("encode g00", "encode", "rollout-0", 10.0, 10.5),
        ("denoise g00 f0 t00", "denoise", "rollout-0", 10.5, 12.0),
        ("score g01 f0", "score", "rollout-0", 13.0, 14.0),
        ("train p000", "train", "trainer-0", 14.0, 15.5),
        ("optimizer step v5", "step", "trainer-0", 15.5, 16.0),
        ("push v5 to rollout-0", "push", "rollout-0", 16.0, 16.25),
        ("push v5 to trainer-0", "push", "trainer-0", 16.25, 17.0),
    ]
    for task, kind, device, started, ended in reversed(spans):
        add(run, it, Span(4, task, kind, device, 9.0, started, ended))

    def logprobs(fragment, *, seconds, per_step, version=4, **values):
        steps = {int(step[1:]): value for step, value in values.items()}
        facts = Denoised(version, per_step, [Sampled(steps)])
        it.add_sampled(alone(fragment), receipt(facts, seconds))

    # steps arrive one by one, or together; the last step has no log-prob
    logprobs(FIRST, seconds=0.5, per_step=0.1, t1=[-0.3, -0.4])
    logprobs(FIRST, seconds=0.25, per_step=0.2, t0=[-0.1, -0.2])
    logprobs(FIRST, seconds=0.25, per_step=0.9)
    logprobs(SECOND, seconds=1.0, per_step=0.2, t0=[-0.5, -0.6], t1=[-0.7, -0.8])
    logprobs(THIRD, seconds=1.0, per_step=0.2, version=2, t0=[-1.0] * 4, t1=[-2.0] * 4)

    def rewards(fragment, values):
        columns = {"reward": [2 * v for v in values], "shapes/score": values}
        it.add_rewards(fragment, receipt(Scored(columns), seconds=0.125))

    rewards(THIRD, [0.5] * 4)
    rewards(SECOND, [0.5, 1.0])
    rewards(FIRST, [0.0, 0.5])
    it.add_advantages(Advantages({0: np.array([-1.5, 0.0, 0.0, 1.5])}))
    it.add_advantages(Advantages({1: np.zeros(4)}, (1,)))
    it.add_update(Updated(5, "", {"train/loss": 0.5}))
    return it


def test_divergences_of_a_group_sample_by_sample(run):
    it = IterationRecorder(run, ROUND)
    add(run, it, Span(4, "train p000", "train", "trainer-0", 9.0, 14.0, 15.5))

    def add_kl(fragment, kl):
        facts = Denoised(4, 0.1, [Sampled({}, kl)])
        it.add_sampled(alone(fragment), receipt(facts))

    add_kl(SECOND, {2: [0.3, 0.4]})
    add_kl(SECOND, {0: [0.1, 0.2]})
    add_kl(FIRST, {0: [0.5, 0.6], 2: [0.7, 0.8]})
    for fragment in (SECOND, FIRST):
        it.add_rewards(fragment, receipt(Scored({"reward": [0.0, 1.0]})))
    expected = np.array([[0.5, 0.7], [0.6, 0.8], [0.1, 0.3], [0.2, 0.4]])
    np.testing.assert_array_equal(it.step_values_of(0), expected)
    it.add_advantages(Advantages({0: expected}))
    record = it.record(Ended(4, 1.0), 1)
    assert record.metrics["reward/kl"] == pytest.approx(expected.mean())
    assert [row.advantage for row in record.samples] == pytest.approx(expected.mean(axis=1))


def test_a_row_for_each_sample_in_order(recorder):
    rows = recorder.record(Ended(6, 8.0), 1).samples
    assert [(row.group, row.sample) for row in rows] == [(g, s) for g in (0, 1) for s in range(4)]
    assert [row.reward for row in rows] == [0, 1, 1, 2, 1, 1, 1, 1]
    assert [row.rewards for row in rows[:2]] == [{"shapes/score": 0.0}, {"shapes/score": 0.5}]
    assert [row.advantage for row in rows] == [-1.5, 0, 0, 1.5, 0, 0, 0, 0]
    assert [row.trained for row in rows] == [True] * 4 + [False] * 4
    assert [row.prompt for row in rows[3:5]] == ["a red circle", "a blue square"]
    assert [row.metadata for row in rows] == [{"tag": 7}] * 4 + [{}] * 4


def test_log_probs_are_in_the_order_of_the_steps(recorder):
    rows = recorder.record(Ended(6, 8.0), 1).samples
    assert {tuple(row.steps) for row in rows} == {(0, 1)}
    assert [row.behaviour_logprobs for row in rows[:4]] == [
        [-0.1, -0.3], [-0.2, -0.4], [-0.5, -0.7], [-0.6, -0.8],
    ]  # fmt: skip


def test_where_a_clock_was_set_back_nothing_is_said_of_what_devices_did(run, recorder):
    """This iteration seems to be over before the one before it was."""
    add(run, recorder, Span(3, "train p000", "train", "trainer-0", 90.0, 91.0, 100.0))
    record = recorder.record(Ended(6, -70.0), 1)
    assert record.idle == {}
    assert record.metrics["reward/mean"] == 1.0
    assert not {name for name in record.metrics if name.startswith(("idle/", "throughput/"))}


def test_rows_name_who_made_them(recorder):
    record = recorder.record(Ended(6, 8.0), 1)
    assert (record.iteration, record.version) == (4, 5)  # 6: the next one's, by now
    for row in record.samples:
        assert (row.iteration, row.seed, row.worker) == (4, 9, "rollout-0")
    # the version that generated, not the one that was made; the second group is stale
    assert [row.policy_version for row in record.samples] == [4] * 4 + [2] * 4
    assert [row.denoise_seconds for row in record.samples[:3]] == [1.0, 1.0, 1.0]
    assert record.samples[0].score_seconds == 0.125


def test_spans_are_in_order_of_time(recorder):
    spans = recorder.record(Ended(6, 8.0), 1).spans
    assert [span.task for span in spans[:2]] == ["encode g00", "denoise g00 f0 t00"]
    assert [span.started for span in spans] == sorted(span.started for span in spans)
    assert spans[0].queued == 9


def test_metrics_by_hand(recorder, run):
    # An iteration before ended at 9.5, so from 9.5 to 17 the devices were this one's.
    before = Span(3, "push v4 to rollout-0", "push", "rollout-0", 9.0, 9.0, 9.5)
    run.trace.end(before, before)
    (run.run_dir / "schedule.json").write_text('{"layout": "gap", "predicted_seconds": 9}')
    record = recorder.record(Ended(6, 8.0), 3)
    metrics = record.metrics
    idle = {cause: metrics.pop(f"idle/{cause}") for cause in CAUSES}
    busy = [metrics[f"device/{name}/busy_fraction"] for name in ("rollout-0", "trainer-0")]
    assert sum(idle.values()) == pytest.approx(1 - sum(busy) / 2)
    assert {name: sum(own.values()) for name, own in record.idle.items()} == pytest.approx(
        {"rollout-0": 1 - busy[0], "trainer-0": 1 - busy[1]}
    )
    expected = {
        "train/loss": 0.5,
        "reward/mean": 1.0,
        # standard deviations sqrt(0.5) and 0
        "reward/std": 0.5**0.5 / 2,
        "reward/shapes/score": 0.5,
        "groups/zero_variance": 1,
        "time/iteration_seconds": 8,
        "time/rollout_seconds": 4,  # 10 to 14
        "time/train_seconds": 2,  # 14 to 16
        "time/push_seconds": 1,  # 16 to 17
        "throughput/samples_per_second": 8 / 7.5,
        "throughput/samples_per_device_second": 4 / 7.5,
        # 0.5 + 1.5 + 1 and 1.5 + 0.5 of 7.5 seconds; a push is no work
        "device/rollout-0/busy_fraction": 3 / 7.5,
        "device/trainer-0/busy_fraction": 2 / 7.5,
        # both groups' means are 1 and 0.5
        "standard_error/reward/mean": 0,
        "standard_error/reward/shapes/score": 0,
        "makespan/predicted_error": 9 / 7.5 - 1,
        "orchestration/steps_per_task": 3,
        "workers/present": 2,
        "workers/lost": 2,
        "workers/joined": 1,
        "workers/left": 0,
        "workers/resumed": 0,
        "numerics/nonfinite_samples": 0,
        "numerics/dropped_groups": 0,
        "numerics/skipped_updates": 0,
        # version 5 was made from 4; a group of version 4 and one of version 2
        "staleness/mean": 1,
        "staleness/max": 2,
        "staleness/iterations_mean": 1,
        "staleness/iterations_max": 2,
        "staleness/groups": 1,
    }
    assert metrics == pytest.approx(expected)
    assert all(isinstance(value, float) for value in metrics.values())


def test_money_and_the_share_of_the_peak(run, recorder, monkeypatch):
    devices = [replace(device, kind="cpu") for device in run.fleet.devices]
    run.fleet.devices[:] = devices
    monkeypatch.setattr("digen_core.trace.peaks.PEAK_TFLOPS", {"cpu": 2.0})
    ended = Ended(6, 8.0, price_per_second=1.0, spent=10.0)
    assert not {"throughput/mfu", "cost/total"} & recorder.record(ended, 1).metrics.keys()
    cluster = run.config.cluster.model_copy(update={"price_per_hour": {"cpu": 1800.0}})
    object.__setattr__(run, "config", run.config.model_copy(update={"cluster": cluster}))
    run.progress.counted(Arithmetic(step=0.0, pair=0.0, decode=1e12))
    metrics = recorder.record(ended, 1).metrics
    window = 8 / metrics["throughput/samples_per_second"]
    assert metrics["cost/iteration"] == pytest.approx(window)
    assert metrics["cost/per_sample"] == pytest.approx(window / 8)
    assert metrics["cost/total"] == 10.0
    score = Span(4, "score g00 f0", "score", "rollout-0", 9.0, 12.0, 13.0, num_items=3)
    add(run, recorder, score)
    metrics = recorder.record(ended, 1).metrics
    # the fixture's own task of scoring says of no samples
    assert metrics["throughput/mfu"] == pytest.approx((3 - 1) * 1e12 / (window * 4e12))


def test_staleness_with_several_updates_is_told_in_iterations_too(run):
    """Three updates an iteration, of which the last was skipped: this one began with version 8."""
    train = run.config.train.model_copy(update={"updates_per_iteration": 3})
    object.__setattr__(run, "config", run.config.model_copy(update={"train": train}))
    it = IterationRecorder(run, Round(4, [Prompt(text) for text in "abc"]))
    add(run, it, Span(4, "score g00 f0", "score", "rollout-0", 0.0, 0.0, 1.0))
    for group, version in enumerate((8, 6, 3)):
        fragment = Fragment(4, group, 0, 0, 2)
        facts = Denoised(version, 0.1, [Sampled({0: [-1.0, -1.0]})])
        it.add_sampled(alone(fragment), receipt(facts))
        it.add_rewards(fragment, receipt(Scored({"reward": [1.0, 1.0]})))
        it.add_advantages(Advantages({group: np.zeros(2)}))
    it.add_update(Updated(9, "", {}))
    it.add_update(Updated(10, "", {}))
    it.skip_update()
    metrics = it.record(Ended(10, 1.0), 1).metrics
    assert metrics["staleness/iterations_mean"] == 1  # 0, 1 and 2
    assert metrics["staleness/iterations_max"] == 2
    assert metrics["staleness/groups"] == 2
    assert it.stale_groups == StaleGroups(2, 2)
    assert not {"staleness/most_groups", "staleness/most_iterations"} & metrics.keys()
    it.stale_limit = StaleGroups(3, 2)
    metrics = it.record(Ended(10, 1.0), 1).metrics
    assert (metrics["staleness/most_groups"], metrics["staleness/most_iterations"]) == (3, 2)
    assert metrics["staleness/max"] == 6  # version 10 was made of 9, and 3 generated
    assert metrics["staleness/mean"] == np.mean([0, 2, 5, 1, 3, 6])


def test_scores_that_failed_are_filled_in_when_their_group_is_complete(run):
    weights = {"shapes": 1.0, "quality": {"type": "shapes", "weight": 2.0}}
    run = replace(run, config=RunConfig(seed=9, rewards=weights))
    it = IterationRecorder(run, ROUND)
    add(run, it, Span(4, "score g00 f0", "score", "rollout-0", 9.0, 13.0, 14.0))
    for fragment, quality, failed in (
        (SECOND, [0.0, 0.0], [1.0, 1.0]),  # its call failed
        (FIRST, [0.25, 0.75], [0.0, 0.0]),
    ):
        shapes = [0.5, 1.0]
        total = [a + 2 * b for a, b in zip(shapes, quality, strict=True)]
        columns = {"reward": total, "shapes/score": shapes}
        columns |= {"quality/score": quality, "quality/failed": failed}
        facts = Denoised(4, 0.1, [Sampled({0: [-1.0, -1.0]})])
        it.add_sampled(alone(fragment), receipt(facts))
        it.add_rewards(fragment, receipt(Scored(columns)))
    assert it.rewards_of(0)["reward"].tolist() == [1.0, 2.5, 0.5 + 2 * 0.5, 1 + 2 * 0.5]
    assert it.rewards_of(0)["reward"].tolist() == [1.0, 2.5, 1.5, 2.0]  # asked again
    it.add_advantages(Advantages({0: np.zeros(4)}))
    record = it.record(Ended(5, 8.0), 1)
    assert [row.reward for row in record.samples] == [1.0, 2.5, 1.5, 2.0]
    assert [row.rewards["quality/score"] for row in record.samples] == [0.25, 0.75, 0.5, 0.5]
    assert [row.rewards["quality/failed"] for row in record.samples] == [0, 0, 1, 1]
    assert record.metrics["reward/quality/failed"] == 0.5
    assert record.metrics["reward/quality/score"] == 0.5
    assert record.metrics["reward/mean"] == 1.75


@pytest.mark.parametrize("groups", [(0, 0), (0, 1)])
@pytest.mark.parametrize("named", [("look", "mood"), ("mood", "look"), ("", "look")])
def test_a_reward_that_names_its_components_differently_is_refused(run, groups, named):
    """Of fragments of a group, and of groups: some were left out, or a KeyError ended the run."""
    it = IterationRecorder(run, ROUND)
    for index, (group, component) in enumerate(zip(groups, named, strict=True)):
        columns = {"reward": [1.0, 2.0], "own/score": [1.0, 2.0]}
        own = {f"own/{component}": [0.5, 0.5]} if component else {}
        it.add_rewards(Fragment(4, group, index, 2 * index, 2), receipt(Scored(columns | own)))
    with pytest.raises(UserError, match="'own' returned 'look' of some samples and not of others"):
        it.sample_metrics()


def test_the_measured_step_is_the_median(recorder):
    assert recorder.step_seconds == 0.2


def test_without_an_update_there_are_no_training_metrics(run):
    it = IterationRecorder(run, Round(0, [Prompt("a red circle")]))
    fragment = Fragment(0, 0, 0, 0, 2)
    facts = Denoised(4, 0.1, [Sampled({0: [-1.0, -1.0]})])
    it.add_sampled(alone(fragment), receipt(facts))
    it.add_rewards(fragment, receipt(Scored({"reward": [1.0, 1.0]})))
    it.add_advantages(Advantages({0: np.zeros(2)}, (0,)))
    add(run, it, Span(0, "score g00 f0", "score", "rollout-0", 0.0, 0.0, 1.0))
    record = it.record(Ended(4, 1.0), 1)
    assert "makespan/predicted_error" not in record.metrics
    assert record.version == 4
    assert not any(name.startswith(("train/", "staleness/")) for name in record.metrics)
    assert record.metrics["time/train_seconds"] == 0
    assert [row.trained for row in record.samples] == [False, False]
