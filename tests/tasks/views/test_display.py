"""What views show of a run that is long, and what they keep of it."""

import re
from base64 import b64decode
from weakref import ref

from digen_core.config.run import RunConfig
from digen_core.records import EvaluationReport, IterationRecord
from tasks.views.display import Progress
from tasks.views.report import iteration_report, report_of


def test_a_page_shows_the_first_and_the_last_of_hundreds_of_evaluations():
    progress = Progress(RunConfig())
    for version in range(0, 1000, 10):
        tag = f"iteration-{version:04d}" if version else "before"
        rewards = {"reward": version / 1000}
        progress.add_evaluation(
            tag, EvaluationReport(version=version, num_prompts=1, num_samples=1, rewards=rewards)
        )
    assert list(progress.evaluations) == [
        "before", "iteration-0960", "iteration-0970", "iteration-0980", "iteration-0990",
    ]  # fmt: skip
    page = report_of("run", progress, {})
    assert "(version 0)" in page
    assert "(version 990)" in page
    assert "(version 10)" not in page


def test_the_last_evaluation_is_the_last_also_of_a_run_that_had_ended_before():
    """It is called "after", too, and was resumed with more iterations."""
    progress = Progress(RunConfig())
    told = [("before", 0), ("after", 4), ("iteration-0004", 4), ("iteration-0006", 6), ("after", 8)]
    for tag, version in told:
        rewards = {"reward": version / 10}
        progress.add_evaluation(
            tag, EvaluationReport(version=version, num_prompts=1, num_samples=1, rewards=rewards)
        )
    shown = [(tag, own.version) for tag, own in progress.evaluations.items()]
    assert shown == [told[0], *told[2:]]
    assert "| reward | 0.000 | 0.400 | 0.600 | 0.800 | +0.800 |" in report_of("run", progress, {})


class Metrics(dict):
    """A dict of which one can tell whether it is kept."""


def test_of_each_iteration_only_what_is_shown_is_kept():
    progress, made = Progress(RunConfig()), []
    for index in range(3):
        metrics = Metrics({"reward/mean": 0.25 * index, "device/rollout-0/busy_fraction": 0.5})
        made.append(ref(metrics))
        progress.add_iteration(IterationRecord(index, index + 1, 1.5, metrics))
        del metrics
    assert [own() is not None for own in made] == [True, False, True]
    assert progress.trend("reward/mean") == [0.0, 0.25, 0.5]
    assert (progress.first["reward/mean"], progress.last["reward/mean"]) == (0.0, 0.5)


def test_iterations_that_are_done_again_count_once():
    """As where a run went back to its last checkpoint."""
    progress = Progress(RunConfig())
    for index, reward in ((0, 0.0), (1, 0.1), (2, 0.2), (3, 0.3), (1, 0.5), (2, 0.6)):
        progress.add_iteration(IterationRecord(index, index + 1, 1.5, {"reward/mean": reward}))
    assert progress.trend("reward/mean") == [0.0, 0.5, 0.6]
    assert progress.trend("train/kl") == []


def test_what_a_run_does_again_after_going_back_is_not_shown_as_its_last():
    progress = Progress(RunConfig(num_iterations=40))
    for tag, version in (("before", 0), ("iteration-0010", 10), ("iteration-0020", 20)):
        progress.add_evaluation(
            tag,
            EvaluationReport(
                version=version, num_prompts=1, num_samples=1, rewards={"reward": 0.5}
            ),
        )
    for index in range(20):
        progress.add_iteration(IterationRecord(index, index + 1, 1.5, {"reward/mean": 0.5}))
    progress.stand_at(12)
    assert list(progress.evaluations) == ["before", "iteration-0010"]
    assert (progress.num_finished, len(progress.trend("reward/mean"))) == (12, 12)


def test_the_chart_of_a_run_that_was_resumed_names_the_iterations_that_it_shows():
    progress = Progress(RunConfig(num_iterations=300))
    for index, reward in ((100, 0.1), (101, 0.2), (102, float("nan")), (104, 0.3)):
        progress.add_iteration(IterationRecord(index, index + 1, 1.5, {"reward/mean": reward}))
    (picture,) = re.findall(r"svg\+xml;base64,([\w+/=]+)", report_of("run", progress, {}))
    texts = re.findall(r">([^<]+)</text>", b64decode(picture).decode())
    assert texts == ["mean reward of each iteration", "0.300", "0.100", "101", "105"]


def test_long_iterations_and_large_sums_are_written_out():
    record = IterationRecord(0, 1, 1234.4, {"reward/mean": 0.5, "cost/total": 12345.5})
    page = iteration_report(record, b"")
    assert "# iteration 1: 1234 s\n" in page
    assert "| 12345.5 |" in page
