"""How far a run is: what it remembers of versions and evaluations."""

from time import time
from types import SimpleNamespace

from digen_core.checkpoints.tensors import write_checkpoint
from digen_core.config.run import RunConfig
from digen_core.config.schedule import ClusterConfig
from digen_core.records import EvaluationReport
from flows import reopen
from flows.runtime import conductor, publishing
from flows.runtime import progress as module_of_progress
from flows.runtime.fleet.losses import StateLostError
from flows.runtime.progress import Progress
from support.checkpoints import position_of, state_of
from support.contexts import run_context


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


def test_a_clock_that_is_set_takes_no_time_and_costs_nothing(monkeypatch, tmp_path):
    """As that of a new machine, some hours off until it has asked for the time."""
    cluster = ClusterConfig(price_per_hour={"cpu": 1.0})
    run = run_context(tmp_path, RunConfig(cluster=cluster, max_minutes=60, max_cost=600.0))
    later = time() + 7200
    for module in (module_of_progress, conductor):
        monkeypatch.setattr(module, "time", lambda: later, raising=False)
    charging = SimpleNamespace(_run=SimpleNamespace(progress=run.progress, price_per_second=1.0))
    conductor.Conductor._charge(charging)
    assert run.limit_reached is None
    assert run.progress.seconds < 60


def test_a_damaged_checkpoint_that_is_written_anew_is_one_to_go_back_to(monkeypatch, tmp_path):
    """The one before may be gone by then, as with `checkpoints.keep_last = 1`."""
    run, folder = run_context(tmp_path), tmp_path / "checkpoints"

    def keep(client, workers, run_id, version, run_dir, position):
        return bool(write_checkpoint(run_dir / "checkpoints", state_of(version), position))

    monkeypatch.setattr(publishing, "keep_checkpoint", keep)
    monkeypatch.setattr(reopen, "notify", lambda run, event, text: None)
    run.progress.is_damaged(folder / "v0003")
    publishing._keep_checkpoint(run, 3, position_of(3))
    reopen.go_back(run, StateLostError("the optimizer's state was lost"))
    assert (run.progress.checkpoint, run.progress.num_iterations) == (folder / "v0003", 3)
