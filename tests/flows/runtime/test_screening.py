"""Candidates in a flow's iteration: what takes their place, and what is kept of them."""

import numpy as np
import pytest

from digen_core.config.run import RunConfig
from digen_core.control.protocol import AdvantagesComputed, Fragment, GroupsReplaced
from digen_core.data.prompts import Prompt
from digen_core.training.advantages import Advantages
from digen_core.transport.origin import Origin
from flows.runtime.iterations.open_iteration import OpenIteration
from flows.runtime.iterations.recorder import IterationRecorder
from flows.runtime.iterations.round import Round
from flows.runtime.iterations.screening import screen
from support.batches import alone
from support.contexts import run_context
from tasks.receipts import Denoised, Ran, Receipt, Sampled, Scored

INDEX, PROMPTS = 4, ("a red circle", "a blue square")
TREE = {
    "seed": 9,
    "rollout": {
        "prompts_per_iteration": 2,
        "group_size": 2,
        "fragment_size": 2,
        "screening": {"candidates": 4, "num_steps": 2},
    },
    "tracking": {"keep_images": "all"},
    "rewards": {
        "odd": {
            "type": "function",
            "function": "smooth_rewards:sometimes_none",
            "on_failure": "drop",
        }
    },
}


@pytest.fixture
def opened(tmp_path):
    """Return what makes an iteration of two prompts, some of whose groups may be replaced."""

    def opened_with(refill=0):
        config = RunConfig.model_validate(TREE)
        run = run_context(tmp_path, config)
        run.progress.once("group-dropped")  # it has been said: there is no flow run to say it on
        texts = [Prompt(text) for text in PROMPTS]
        round_ = Round(INDEX, texts * 2 * (1 + refill), refill, is_screened=True)
        return run, OpenIteration(round_, IterationRecorder(run, round_), 1)

    return opened_with


def generate(it, group, rewards, failed=()):
    """Note a group of so many samples as tasks tell of it, in fragments of two."""
    ran = Ran("rollout-0", started=0.0, ended=1.0, num_bytes=0)
    for index in range(len(rewards) // 2):
        part = slice(2 * index, 2 * index + 2)
        fragment = Fragment(INDEX, group, index, part.start, 2)
        it.segments[fragment] = []
        it.recorder.add_sampled(alone(fragment), Receipt(ran, Denoised(4, 0.1, [Sampled()])))
        missing = [float(sample in failed) for sample in range(part.start, part.stop)]
        columns = {"reward": rewards[part], "odd/score": rewards[part], "odd/failed": missing}
        it.recorder.add_rewards(fragment, Receipt(ran, Scored(columns)))


def test_samples_take_the_place_of_the_best_and_the_worst(opened):
    run, it = opened()
    generate(it, 0, [0.5, 2.0, -1.0, 1.0])
    assert screen(run, it, 0) == GroupsReplaced(INDEX, ((0, 2),))
    assert it.origin_of(Fragment(INDEX, 2, 0, 0, 2)) == Origin((INDEX, 0), (1, 2))
    assert it.origin_of(Fragment(INDEX, 2, 1, 1, 1)) == Origin((INDEX, 0), (2,))
    assert it.origin_of(Fragment(INDEX, 0, 0, 0, 2)) is None
    assert not it.segments, "trajectories of candidates are kept"
    generate(it, 2, [3.0, 1.0])
    it.recorder.add_advantages(Advantages({2: np.array([1.0, -1.0])}))
    rows = it.recorder.rows()
    assert [(row.group, row.candidate, row.screened_reward) for row in rows] == [
        (2, 1, 2.0),
        (2, 2, -1.0),
    ]
    assert all(row.image for row in rows)
    metrics = it.recorder.sample_metrics()
    assert metrics["screening/reward"] == (0.5 + 2 - 1 + 1) / 4
    assert metrics["screening/rank_correlation"] == pytest.approx(1)
    assert metrics["reward/mean"] == 2


def test_candidates_of_which_too_few_have_a_score_are_dropped(opened):
    """Their rows say which lack one, and name no images: none is kept of them."""
    run, it = opened()
    generate(it, 1, [0.5, 2.0, -1.0, 1.0], failed=(0, 1, 3))
    assert screen(run, it, 1) == AdvantagesComputed(INDEX, (1,), (1,))
    rows = it.recorder.rows()
    assert [row.rewards["odd/failed"] for row in rows] == [1, 1, 0, 1]
    assert {(row.group, row.image, row.trained, row.candidate) for row in rows} == {
        (1, None, False, None)
    }
    metrics = it.recorder.sample_metrics()
    assert metrics["numerics/dropped_groups"] == 1
    assert metrics["groups/zero_variance"] == 0
    assert "reward/mean" not in metrics
    assert not it.segments, "trajectories of candidates are kept"


def test_candidates_that_lack_a_number_do_not_count_in_their_mean(opened):
    """One without a score, which is 0 then, and one whose pixels were NaN, which are 0 then."""
    run, it = opened()
    generate(it, 0, [0.0, 20.0, 18.0, 7.0], failed=(0,))
    it.recorder.add_nonfinite(Fragment(INDEX, 0, 1, 2, 2), {3: "pixels"})
    assert screen(run, it, 0) == GroupsReplaced(INDEX, ((0, 2),))
    generate(it, 2, [21.0, 19.0])
    it.recorder.add_advantages(Advantages({2: np.array([1.0, -1.0])}))
    assert it.recorder.sample_metrics()["screening/reward"] == 19


def test_the_next_candidates_take_the_place_of_those(opened):
    run, it = opened(refill=1)
    generate(it, 1, [0.5, 2.0, -1.0, 1.0], failed=(0, 1, 3))
    assert screen(run, it, 1) == GroupsReplaced(INDEX, ((1, 5),))
    assert it.recorder.sample_metrics()["groups/refilled"] == 1
    generate(it, 5, [0.5, 2.0, -1.0, 1.0], failed=(0, 1, 3))
    assert screen(run, it, 5) == AdvantagesComputed(INDEX, (5,), (5,))


def test_samples_come_before_the_next_prompts_candidates():
    """Of two prompts, and two that may take their place: work of the first group comes first."""
    round_ = Round(INDEX, [Prompt("a")] * 8, 1, is_screened=True)
    order = sorted(range(8), key=round_.priority_of, reverse=True)
    assert order == [0, 2, 1, 3, 4, 6, 5, 7]
    assert round_.priority_of(0, 1) > round_.priority_of(2) > round_.priority_of(2, 1)
    later = Round(INDEX + 1, [Prompt("a")] * 8, 1, is_screened=True)
    assert round_.priority_of(7) > later.priority_of(0)
    plain = Round(INDEX, [Prompt("a")] * 4, 1)
    assert sorted(range(4), key=plain.priority_of, reverse=True) == [0, 1, 2, 3]
