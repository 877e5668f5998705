"""How far a run is: what it remembers of versions and evaluations."""

from digen_core.records import EvaluationReport
from flows.runtime.progress import Progress


def report(version):
    return EvaluationReport(version=version, num_prompts=1, num_samples=1, rewards={"reward": 0.5})


def test_of_versions_that_are_made_again_nothing_is_known():
    progress = Progress()
    progress.first_version(0, "a")
    for version, made in enumerate("bcd", start=1):
        progress.stepped(version, made, oldest=version, trained_from=version - 1)
    progress.first_version(1, "b")
    assert progress.hashes == {0: "a", 1: "b"}


def test_of_hundreds_of_evaluations_the_first_and_the_newest_are_kept():
    progress = Progress()
    progress.evaluated("before", report(0))
    for version in range(10, 1000, 10):
        progress.evaluated(f"iteration-{version:04d}", report(version))
    assert list(progress.evaluations) == ["before", "iteration-0990"]
    progress.evaluated("after", report(990))
    assert list(progress.evaluations) == ["before", "iteration-0990", "after"]


def test_a_run_that_goes_on_knows_the_first_evaluation_and_those_of_its_version():
    progress = Progress()
    known = {"before": report(0), "iteration-0001": report(1), "after": report(0)}
    progress.stand_at(None, None, 0, known)
    assert progress.evaluations.keys() == {"before", "after"}
