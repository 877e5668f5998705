"""Standard errors of means over prompts, by hand."""

import io
from math import sqrt

import numpy as np
import pytest
from rich.console import Console

from deployments.views.summary import print_evaluation, print_run
from digen_core.maths.statistics import Change, paired_change, standard_error, unpaired_change
from digen_core.records import EvaluationReport, RunReport
from digen_core.rewards.failures import grouped_means


def report_of(version: int, means: list[float]) -> EvaluationReport:
    own = sum(means) / len(means)
    return EvaluationReport(
        version=version,
        num_prompts=len(means),
        num_samples=4 * len(means),
        rewards={"reward": own},
        by_prompt={"reward": means},
    )


def test_a_standard_error_by_hand():
    # deviations -1.5, -0.5, 0.5, 1.5: sum of squares 5, over 3, over 4
    assert standard_error([1.0, 2.0, 3.0, 4.0]) == pytest.approx(sqrt(5 / 3 / 4))
    assert standard_error([1.0]) is None
    assert standard_error([]) is None


def test_it_is_the_spread_of_means_that_are_drawn_again():
    """Prompts with means of their own and noisy samples: the estimate holds what is measured."""
    random = np.random.default_rng(3)
    draws = random.normal(0, 1, (2000, 30, 1)) + random.normal(0, 2, (2000, 30, 4))
    means = draws.mean(axis=2)
    spread = means.mean(axis=1).std()
    assert np.mean([standard_error(own.tolist()) for own in means]) == pytest.approx(
        spread, rel=0.05
    )


def test_a_change_on_the_same_prompts_is_judged_by_the_prompts_own_changes():
    first, last = report_of(0, [0.0, 0.5, 1.0]), report_of(4, [0.25, 0.625, 1.25])
    change = last.change_since(first, "reward")
    assert change.value == pytest.approx(0.625 / 3)
    assert change.error == pytest.approx(0.125 / 3)  # of 0.25, 0.125, 0.25
    assert not change.is_noise
    apart = unpaired_change(0.208, first.standard_error("reward"), last.standard_error("reward"))
    assert apart.error > 4 * change.error
    assert apart.is_noise


def test_a_prompt_without_a_score_is_left_out_on_both_sides():
    assert paired_change([0.0, None, 1.0], [0.5, 1.0, 2.0], 0.5).error == pytest.approx(0.25)


def test_what_is_noise():
    assert Change(0.2, 0.1).is_noise
    assert not Change(-0.21, 0.1).is_noise
    assert Change(0.0, 0.0).is_noise
    assert not Change(0.2, None).is_noise


def test_means_of_prompts_leave_out_scores_that_failed():
    columns = {
        "lamp/score": np.array([1.0, 9.0, 3.0, 5.0, 7.0, 7.0]),
        "lamp/failed": np.array([0.0, 1.0, 0.0, 0.0, 1.0, 1.0]),
    }
    assert grouped_means(columns, 2) == {
        "lamp/score": [1.0, 4.0, None],
        "lamp/failed": [0.5, 0.0, 1.0],
    }


def printed(call, *arguments) -> list[str]:
    console = Console(file=io.StringIO(), width=80)
    call(*arguments, console)
    return console.file.getvalue().splitlines()


def summary_of(before: list[float], after: list[float]) -> str:
    report = RunReport(
        run_id="a",
        run_dir="runs/a",
        version=2,
        num_iterations=2,
        seconds=2.0,
        before=report_of(0, before),
        after=report_of(2, after),
        view="mlflow ui",
    )
    (line,) = [
        line
        for line in printed(print_run, report, 3.0)
        if line.startswith("reward ") and "±" in line
    ]
    return " ".join(line.split())


def test_the_summary_says_what_is_noise():
    moved = summary_of([0.0, 0.5, 1.0], [0.25, 0.625, 1.25])
    assert moved == "reward 0.500 ± 0.289 0.708 ± 0.292 +0.208 ± 0.042"
    still = summary_of([0.0, 0.5, 1.0], [0.5, 0.25, 1.0])
    assert still.endswith("+0.083 ± 0.220 noise")
    (line,) = [
        li
        for li in printed(print_evaluation, report_of(1, [0.0, 1.0]))
        if "reward " in li and "±" in li
    ][-1:]
    assert "0.500 ± 0.500" in line
