"""Which groups are told to be scored when: fragments come in any order, and devices are lost."""

from types import SimpleNamespace

import pytest

from digen_core.config.run import RunConfig
from digen_core.control.protocol import Device, Fragment, FragmentScored, Score
from digen_core.data.prompts import Prompt
from flows import evaluate
from flows.runtime.group_scoring import GroupScoring
from flows.runtime.scoring import Scoring
from tasks.receipts import Ran, Receipt, Scored
from tasks.workers import RealWorkers

A, B = (Fragment(3, 1, index, 2 * index, 2) for index in range(2))
PROMPT = Prompt("a cat")


class Submitter:
    def __init__(self):
        self.works = []

    def submit(self, it, work):
        self.works.append(work)
        return f"future {len(self.works)}"


class Recorder:
    def __init__(self):
        self.rewards = {}

    def add_rewards(self, fragment, receipt):
        self.rewards[fragment] = receipt.facts.rewards


def receipt(**rewards):
    return Receipt(Ran("rollout-0", 0.0, 1.0, num_bytes=0), Scored(rewards))


OWN = {"sees": "groups", "type": "function", "function": "m:f"}
REWARDS = {"shapes": 1, "here": OWN, "there": {**OWN, "pool": "judges"}}


def scoring_of(rewards):
    tree = {"rewards": rewards, "rollout": {"group_size": 4, "fragment_size": 2}}
    config = RunConfig.model_validate(tree)
    run = SimpleNamespace(config=config, shared_dir="run", workers=RealWorkers(config))
    return GroupScoring(run, Submitter())


@pytest.fixture
def scoring():
    return scoring_of(REWARDS)


@pytest.fixture
def it():
    round_ = SimpleNamespace(priority_of=lambda group, fragment=0: -group)
    return SimpleNamespace(recorder=Recorder(), round=round_, notified=False, index=3)


def decoded(scoring, it, fragment, device, score):
    scoring.begin(fragment, device, f"samples of {fragment.index} on {device}")
    own = receipt(reward=[score] * 2, **{"shapes/score": [score] * 2})
    scoring.add(it, fragment, own, PROMPT)


def test_a_group_is_scored_once_all_its_fragments_are_and_not_before(scoring, it):
    works = scoring._submitter.works
    decoded(scoring, it, B, "rollout-1", 0.25)
    scoring.begin(A, "rollout-0", "samples of A")
    assert works == []
    scoring.add(it, A, receipt(reward=[0.5] * 2, **{"shapes/score": [0.5] * 2}), PROMPT)
    here, there = works
    assert (here.device, here.resource, there.resource) == ("rollout-0", None, "judges")
    assert here.takes_from == there.takes_from == {"rollout-0", "rollout-1"}
    for work in works:
        assert work.parameters["samples"] == ["samples of A", "samples of 1 on rollout-1"]
        assert work.parameters["prompts"] == [PROMPT] * 4
        assert work.about == {"group": 1, "num_items": 0}
    kept = [work.parameters["at"] for work in works]  # of what failed, beside that of A and B
    assert kept == [(Fragment(3, 1, index, 0, 4), "run") for index in (2, 3)]
    found = receipt(reward=[9.0] * 4, **{"there/score": [5.0, 6, 7, 8]})
    assert there.event_of(found) == []  # the other has not said it
    found = receipt(reward=[9.0] * 4, **{"here/score": [1.0, 2, 3, 4]})
    assert here.event_of(found) == [FragmentScored(A), FragmentScored(B)]
    assert it.recorder.rewards == {
        A: {"reward": [0.5] * 2, "shapes/score": [0.5] * 2,
            "there/score": [5, 6], "here/score": [1, 2]},
        B: {"reward": [0.25] * 2, "shapes/score": [0.25] * 2,
            "there/score": [7, 8], "here/score": [3, 4]},
    }  # fmt: skip
    assert scoring._groups == {}


def test_what_a_lost_device_had_decoded_is_waited_for_again(scoring, it):
    works = scoring._submitter.works
    decoded(scoring, it, A, "rollout-0", 0.5)
    scoring.forget(["rollout-0"])
    decoded(scoring, it, B, "rollout-1", 0.25)
    assert works == []
    decoded(scoring, it, A, "rollout-2", 0.5)
    assert len(works) == 2
    assert works[0].takes_from == {"rollout-1", "rollout-2"}


def test_a_group_that_is_scored_anew_counts_nothing_of_the_first_time(scoring, it):
    works = scoring._submitter.works
    decoded(scoring, it, A, "rollout-0", 0.5)
    decoded(scoring, it, B, "rollout-1", 0.25)
    first_here, first_there = works
    assert first_there.event_of(receipt(reward=[0.0] * 4, **{"there/score": [0.0] * 4})) == []
    scoring.forget(["rollout-1"])
    decoded(scoring, it, B, "rollout-0", 0.25)
    here, there = works[2:]
    stale = receipt(reward=[0.0] * 4, **{"here/score": [0.0] * 4})
    assert first_here.event_of(stale) == []
    assert here.event_of(receipt(reward=[0.0] * 4, **{"here/score": [1.0, 2, 3, 4]})) == []
    found = receipt(reward=[0.0] * 4, **{"there/score": [5.0, 6, 7, 8]})
    assert there.event_of(found) == [FragmentScored(A), FragmentScored(B)]
    assert it.recorder.rewards[B]["there/score"] == [7, 8]


def test_groups_of_unequal_fragments_are_whole_when_all_samples_are_there(scoring, it):
    parts = [Fragment(3, 2, 0, 0, 1), Fragment(3, 2, 1, 1, 3)]
    for part in parts:
        scoring.begin(part, "rollout-0", "samples")
        assert not scoring._submitter.works
        scoring.add(it, part, receipt(reward=[0.0] * part.num_samples), PROMPT)
    assert len(scoring._submitter.works) == 2


@pytest.mark.parametrize(
    ("reward", "lasts"),
    [
        ({"type": "pairwise", "url": "http://127.0.0.1:1/v1", "model": "m"}, True),
        ({"type": "remote", "url": "http://127.0.0.1:1/score", "sees": "groups"}, True),
        (OWN, False),
    ],
    ids=["pairwise", "remote", "own"],
)
def test_many_questions_about_a_group_are_not_soon_taken_for_a_task_that_hangs(it, reward, lasts):
    scoring = scoring_of({**REWARDS, "there": {**reward, "pool": "judges"}})
    for part in (A, B):
        decoded(scoring, it, part, "rollout-0", 0.5)
    here, there = scoring._submitter.works
    assert (here.lasts, there.lasts) == (False, lasts)


@pytest.mark.parametrize(
    ("reward", "lasts"),
    [
        ({"type": "remote", "url": "http://127.0.0.1:1/score"}, True),
        ({"type": "jpeg_compressibility"}, False),
    ],
    ids=["remote", "own"],
)
def test_a_server_that_is_asked_about_samples_is_not_soon_taken_for_a_task_that_hangs(
    it, monkeypatch, reward, lasts
):
    """It may be away for as long as it is asked again; many samples take it long in evaluations."""
    rewards = {"here": reward, "there": {**reward, "pool": "judges"}}
    tree = {"rewards": rewards, "rollout": {"group_size": 4, "fragment_size": 2}}
    config = RunConfig.model_validate(tree)
    run = SimpleNamespace(config=config, shared_dir="run", workers=RealWorkers(config))
    scoring = Scoring(run, Submitter())
    it.segments, it.round.prompts = {A: [(range(4), "latents")]}, [PROMPT] * 2
    scoring.begin(it, Score(A, "rollout-0"))
    assert [work.lasts for work in scoring._submitter.works] == [lasts, lasts]
    asked = []
    monkeypatch.setattr(evaluate, "sends_deltas", lambda *of: False)
    devices = {"rollout-0": Device("rollout-0", frozenset({"rollout"}), "h100")}
    costs = SimpleNamespace(kinds={"h100": SimpleNamespace(fragment=lambda *of: 5.0)})
    run.progress = SimpleNamespace(version=1, known_costs=costs, holder="rollout-0", state="state")
    run.fleet = SimpleNamespace(known=devices, workers_of=lambda name: ("at",))
    run.evaluation_prompts = [PROMPT]
    tasks = SimpleNamespace(
        submit=lambda body, label, where, **of: (
            asked.append((body.name, of["expected"])) or SimpleNamespace(future="samples")
        )
    )
    evaluation = evaluate._Evaluation(run, tasks)
    (part,) = evaluation._parts
    part.device, part.shown = "rollout-0", 0
    evaluation._submit_part(part)
    expected = (None, None) if lasts else (5.0, 0.0)
    assert asked == [("publish", 0.0), ("evaluate", expected[0]), ("score", expected[1])]
