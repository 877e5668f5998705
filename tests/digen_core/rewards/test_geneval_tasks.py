"""GenEval's table: the accuracy of each task, and the mean over the tasks."""

import pytest

from digen_core.config.rewards.clip import ClipScoreConfig
from digen_core.config.rewards.verifiers import GenevalConfig
from digen_core.data.prompts import Prompt
from digen_core.records import EvaluationReport
from digen_core.rewards.geneval.tasks import accuracies, task_means

TAGS = ["counting", "position", "counting", "unknown", "counting"]
PROMPTS = [Prompt(f"{place}", {"tag": tag}) for place, tag in enumerate(TAGS)]
CORRECT = [1.0, 0.25, 0.5, 1.0, 0.0]  # of four samples of each


def test_the_overall_score_is_the_mean_over_tasks_not_over_prompts():
    rewards = {"mine": GenevalConfig(), "clipscore": ClipScoreConfig()}
    by_prompt = {"mine/correct": CORRECT, "clipscore/score": CORRECT}
    by_task = accuracies(rewards, PROMPTS, by_prompt)
    assert by_task == {
        "mine/counting": [1.0, None, 0.5, None, 0.0],
        "mine/position": [None, 0.25, None, None, None],
    }
    means = task_means(by_task)
    assert means == pytest.approx(
        {"mine/counting": 0.5, "mine/position": 0.25, "mine/overall": 0.375}
    )
    report = EvaluationReport(
        version=1, num_prompts=5, num_samples=20, rewards=means, by_prompt=by_task
    )
    assert report.standard_error("mine/counting") == pytest.approx(0.5 / 3**0.5)
    assert report.standard_error("mine/position") is None  # of one prompt
    assert report.change_since(report, "mine/counting").value == 0


def test_a_reward_whose_failure_is_neutral_has_no_tasks():
    found = accuracies({"mine": GenevalConfig(on_failure="neutral")}, PROMPTS, {"mine/score": []})
    assert found == {}
    assert task_means(found) == {}
