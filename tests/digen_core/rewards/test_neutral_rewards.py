"""``on_failure = "neutral"``: what a failure does to rewards, advantages and metrics."""

import logging

import numpy as np
import pytest
import torch

from digen_core.config.rewards.own import FunctionConfig
from digen_core.maths.grpo import group_advantages
from digen_core.rewards.attempts import PartialError
from digen_core.rewards.failures import component_means, settle
from digen_core.rewards.scoring import RewardError, score_images

NAN = float("nan")


def columns_of(values, **changes):
    """Score six samples with a reward that returns ``values`` and another one that always works."""

    def flaky(images, prompts):
        if isinstance(values, Exception):
            raise values
        return torch.tensor(values)

    def sound(images, prompts):
        return torch.arange(6.0)

    configs = {
        "flaky": FunctionConfig(function="t:f", weight=2.0, on_failure="neutral", **changes),
        "sound": FunctionConfig(function="t:s"),
    }
    functions = {"flaky": flaky, "sound": sound}
    return score_images(functions, configs, torch.zeros(6, 3, 2, 2), ["a"] * 6)


REWARDS = {
    "flaky": FunctionConfig(function="t:f", weight=2.0, on_failure="neutral"),
    "sound": FunctionConfig(function="t:f"),
}


def test_without_a_failure_only_a_column_of_zeros_is_added():
    found = columns_of([1.0, 2, 3, 4, 5, 6])
    assert list(found) == ["reward", "flaky/score", "flaky/failed", "sound/score"]
    assert not found["flaky/failed"].any()
    assert settle(found, REWARDS)["reward"].tolist() == found["reward"].tolist()
    assert found["reward"].tolist() == [2 + 0, 4 + 1, 6 + 2, 8 + 3, 10 + 4, 12 + 5]


def test_samples_without_a_score_count_with_the_mean_of_their_group():
    found = columns_of([1.0, NAN, 3, 5, float("inf"), 7])
    assert found["flaky/failed"].tolist() == [0, 1, 0, 0, 1, 0]
    assert all(np.isfinite(values).all() for values in found.values())
    settled = settle(found, REWARDS)
    assert settled["flaky/score"].tolist() == [1, 4, 3, 5, 4, 7]  # 4 = (1 + 3 + 5 + 7) / 4
    assert settled["reward"].tolist() == [2, 8 + 1, 6 + 2, 10 + 3, 8 + 4, 14 + 5]


def test_a_group_without_any_score_is_judged_by_the_other_rewards():
    settled = settle(columns_of(ValueError("no judge")), REWARDS)
    assert settled["flaky/failed"].tolist() == [1] * 6
    assert settled["reward"].tolist() == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("values", [[1.0, NAN, 3, 5, NAN, 7], RuntimeError("down")])
def test_a_failure_neither_favours_nor_harms_a_sample(values):
    settled = settle(columns_of(values), REWARDS)
    owner = torch.zeros(6, dtype=torch.long)

    def centred(values):
        return group_advantages(torch.from_numpy(values), owner, scale="none").numpy()

    failed = settled["flaky/failed"] > 0
    only_sound = centred(settled["sound/score"])
    np.testing.assert_allclose(centred(settled["reward"])[failed], only_sound[failed], atol=1e-12)


def test_fragments_of_a_group_are_settled_together():
    """One fragment's call failed: its samples count with the mean of the others'."""
    parts = [columns_of([1.0, 2, 3, 4, 5, 9]), columns_of(OSError("down"))]
    joined = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    settled = settle(joined, REWARDS)
    assert settled["flaky/score"].tolist() == [1, 2, 3, 4, 5, 9] + [4] * 6


def test_metrics_tell_of_failures_and_average_what_is_known():
    found = columns_of([1.0, NAN, 3, 5, NAN, 7])
    means = component_means(settle(found, REWARDS))
    assert means["flaky/failed"] == pytest.approx(1 / 3)
    assert means["flaky/score"] == 4
    assert means["sound/score"] == 2.5
    nothing = component_means(settle(columns_of(OSError("down")), REWARDS))
    assert nothing == {"reward": 2.5, "flaky/failed": 1.0, "sound/score": 2.5}


def test_a_failure_is_logged_and_only_after_the_last_attempt(caplog):
    with caplog.at_level(logging.WARNING, "digen_core.rewards.scoring"):
        columns_of(OSError("down"), max_attempts=2, backoff_seconds=0)
    assert "raised OSError: down (attempt 2 of 2); it is neutral for 6 samples" in caplog.text


def test_a_failure_of_some_samples_leaves_the_others_their_scores(caplog):
    error = PartialError("2 of them are too dark", torch.tensor([1.0, NAN, 3, 5, NAN, 7]))
    with caplog.at_level(logging.WARNING, "digen_core.rewards.scoring"):
        found = columns_of(error, max_attempts=3, backoff_seconds=0)
    assert found["flaky/failed"].tolist() == [0, 1, 0, 0, 1, 0]
    assert found["flaky/score"].tolist() == [1, 0, 3, 5, 0, 7]
    assert "failed: 2 of them are too dark; it is neutral for 2 samples" in caplog.text


def test_a_wrong_number_of_values_is_a_failure_of_all():
    assert columns_of([1.0, 2.0])["flaky/failed"].tolist() == [1] * 6


@pytest.mark.parametrize("component", ["failed", "part/failed"])
def test_no_function_may_use_the_mark(component):
    with pytest.raises(RewardError, match=f"returned '{component}', a name that is taken"):
        score_images(
            {"mine": lambda i, p: {"score": torch.zeros(1), component: torch.zeros(1)}},
            {"mine": FunctionConfig(function="t:f")},
            torch.zeros(1, 3, 2, 2),
            ["a"],
        )
