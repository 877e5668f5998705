"""Which checkpoints stay: the newest always, and what the config asks for."""

from contextlib import nullcontext
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from digen_core.checkpoints.retention import evaluations_of, kept, prune
from digen_core.checkpoints.tensors import read_checkpoint, write_checkpoint
from digen_core.config.checkpoint import CheckpointConfig
from digen_core.errors import UserError
from digen_core.records import EvaluationReport
from support.checkpoints import names_in, position_of, state_of

VERSIONS = st.lists(st.integers(1, 60), unique=True, max_size=20)
CONFIGS = st.builds(
    CheckpointConfig,
    keep_last=st.integers(1, 5),
    keep_every=st.integers(0, 7),
    keep_best=st.integers(0, 4),
    best_is=st.sampled_from(["highest", "lowest"]),
)


@given(VERSIONS, st.dictionaries(st.integers(1, 60), st.floats(-1, 1)), CONFIGS)
def test_what_is_kept(versions, scores, config):
    found = kept(versions, scores, config)
    assert found <= set(versions)
    assert set(sorted(versions)[-config.keep_last :]) <= found
    assert all((v in found) for v in versions if config.keep_every and v % config.keep_every == 0)
    worse = {v: scores[v] for v in versions if v in scores and v not in found}
    better = [scores[v] for v in found if v in scores]
    sign = 1 if config.best_is == "highest" else -1
    for score in worse.values():  # as many as are asked for are at least as good
        assert sum(sign * other >= sign * score for other in better) >= config.keep_best
    others = found - set(sorted(versions)[-config.keep_last :])
    first = {v // config.keep_every: v for v in sorted(versions)[::-1]} if config.keep_every else {}
    assert all(v in found for multiple, v in first.items() if multiple)
    assert len(others - set(first.values())) <= config.keep_best


def run_with(tmp_path, metrics: dict[int, float]):
    for version, value in metrics.items():
        position = position_of(version, **{"reward/mean": value})
        write_checkpoint(tmp_path / "checkpoints", state_of(version), position)


def test_a_run_keeps_the_last_those_between_and_the_best(tmp_path):
    config = CheckpointConfig(keep_last=1, keep_every=4, keep_best=2, best_by="reward/mean")
    for version, value in enumerate([0.1, 0.9, 0.2, 0.3, 0.8, 0.7, 0.75], start=1):
        run_with(tmp_path, {version: value})
        prune(tmp_path, config)
        read_checkpoint(tmp_path / "checkpoints" / f"v{version:04d}")  # the newest is there
    assert names_in(tmp_path / "checkpoints") == ["v0002", "v0004", "v0005", "v0007"]


@pytest.mark.parametrize(
    ("ends", "left"),
    [
        ([2, 4, 6, 8, 10, 12, 14], [4, 8, 12, 14]),
        ([2, 3, 5, 7, 9, 11, 13, 15], [5, 9, 13, 15]),  # one of two updates was skipped
        ([3, 6, 9, 12, 15, 18], [6, 9, 12, 18]),  # of every third version there is a checkpoint
    ],
)
def test_multiples_that_no_checkpoint_is_of_are_passed(ends, left):
    config, there = CheckpointConfig(keep_last=1, keep_every=4), list[int]()
    for version in ends:
        there = sorted(kept([*there, version], {}, config))
    assert there == left


def test_the_best_by_evaluation(tmp_path):
    run_with(tmp_path, dict.fromkeys(range(1, 6), 0.5))
    for version, value in {0: 0.9, 2: 0.4, 3: 0.6}.items():
        rewards = {"reward": value, "shapes/exact": -value}
        report = EvaluationReport(version=version, num_prompts=1, num_samples=1, rewards=rewards)
        (tmp_path / "evaluation").mkdir(exist_ok=True)
        for tag in (f"iteration-{version}", f"again-{version}"):
            (tmp_path / "evaluation" / f"{tag}.json").write_text(report.model_dump_json())
    assert {tag: r.version for tag, r in evaluations_of(tmp_path).items()} == {
        "iteration-0": 0, "iteration-2": 2, "iteration-3": 3,
    }  # fmt: skip
    prune(tmp_path, CheckpointConfig(keep_last=3, keep_best=1, best_by="evaluation/shapes/exact"))
    assert names_in(tmp_path / "checkpoints") == ["v0002", "v0003", "v0004", "v0005"]
    prune(tmp_path, CheckpointConfig(keep_last=1, keep_best=1))
    assert names_in(tmp_path / "checkpoints") == ["v0003", "v0005"]


@pytest.mark.parametrize("best_by", ["evaluation/reward", "reward/mean"])
def test_what_was_judged_is_not_read_again_with_each_checkpoint(best_by, tmp_path, monkeypatch):
    config = CheckpointConfig(keep_last=1, keep_every=1, keep_best=1, best_by=best_by)
    run_with(tmp_path, {1: 0.5, 2: 0.4})
    (tmp_path / "evaluation").mkdir()
    for version in range(3):
        evaluate(tmp_path, version)
    prune(tmp_path, config)
    opened, read = [], Path.read_bytes

    def read_bytes(path):
        opened.append(path.relative_to(tmp_path).as_posix())
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", read_bytes)
    run_with(tmp_path, {3: 0.6})
    evaluate(tmp_path, 3)
    prune(tmp_path, config)
    new = {"evaluation/iteration-0003.json", "checkpoints/v0003/manifest.json"}
    assert len(opened) == 1
    assert set(opened) < new


def evaluate(run_dir, version):
    rewards = {"reward": 0.1 * version}
    report = EvaluationReport(version=version, num_prompts=1, num_samples=1, rewards=rewards)
    (run_dir / "evaluation" / f"iteration-{version:04d}.json").write_text(report.model_dump_json())


def test_a_metric_that_there_is_not_is_refused_and_nothing_is_removed(tmp_path):
    run_with(tmp_path, {1: 0.5, 2: 0.5})
    config = CheckpointConfig(keep_last=1, keep_best=1, best_by="train/kl")
    with pytest.raises(UserError, match=r"best_by is train/kl, but there are only reward/mean"):
        prune(tmp_path, config)
    assert names_in(tmp_path / "checkpoints") == ["v0001", "v0002"]


def test_of_a_checkpoint_that_lies_elsewhere_the_link_goes(tmp_path):
    run_with(tmp_path, {1: 0.5, 2: 0.5})
    first, elsewhere = tmp_path / "checkpoints" / "v0001", tmp_path / "larger disk"
    first.rename(elsewhere)
    first.symlink_to(elsewhere)
    read_checkpoint(first)
    prune(tmp_path, CheckpointConfig(keep_last=1))
    assert names_in(tmp_path / "checkpoints") == ["v0002"]
    assert {path.name for path in elsewhere.iterdir()} >= {"manifest.json", "state.safetensors"}


@pytest.mark.parametrize("best_by", ["reward/remote/score", "train/stale_clip_fraction"])
def test_a_metric_that_may_come_is_waited_for(best_by, tmp_path):
    """As a score that has failed for all samples so far, or of pairs of which none was stale."""
    config = CheckpointConfig(keep_last=1, keep_best=1, best_by=best_by)
    told = {1: {}, 2: {best_by: 0.2}, 3: {best_by: 0.1}, 4: {}}
    for version, own in told.items():
        metrics = {"reward/mean": 0.5, "reward/remote/failed": 1.0 - bool(own), **own}
        position = position_of(version, **metrics)
        write_checkpoint(tmp_path / "checkpoints", state_of(version), position)
        prune(tmp_path, config)
    assert names_in(tmp_path / "checkpoints") == ["v0002", "v0004"]


@pytest.mark.parametrize("failed", [{}, {"remote/failed": 1.0}])
def test_a_score_that_failed_in_the_first_evaluation_may_come(failed, tmp_path):
    run_with(tmp_path, {1: 0.5})
    rewards = {"reward": 0.5, **failed}
    report = EvaluationReport(version=0, num_prompts=1, num_samples=1, rewards=rewards)
    (tmp_path / "evaluation").mkdir()
    (tmp_path / "evaluation" / "before.json").write_text(report.model_dump_json())
    config = CheckpointConfig(keep_best=1, best_by="evaluation/remote/score")
    expected = nullcontext() if failed else pytest.raises(UserError, match="there are only reward")
    with expected:
        prune(tmp_path, config)


def test_a_version_whose_iteration_lacks_the_metric_is_none_of_the_best(tmp_path):
    """As where a reward that may fail has failed for all of its samples."""
    run_with(tmp_path, {1: 0.5, 2: 0.4})
    write_checkpoint(tmp_path / "checkpoints", state_of(3), position_of(3, **{"reward/std": 0.1}))
    run_with(tmp_path, {4: 0.3})
    prune(tmp_path, CheckpointConfig(keep_last=1, keep_best=1, best_by="reward/mean"))
    assert names_in(tmp_path / "checkpoints") == ["v0001", "v0004"]


def test_version_0_which_no_iteration_made_has_no_metric(tmp_path):
    write_checkpoint(tmp_path / "checkpoints", state_of(0), position_of(0))
    run_with(tmp_path, {1: 0.5, 2: 0.4})
    prune(tmp_path, CheckpointConfig(keep_last=1, keep_best=1, best_by="reward/mean"))
    assert names_in(tmp_path / "checkpoints") == ["v0001", "v0002"]


def test_a_metric_of_no_kind_is_refused_at_once():
    with pytest.raises(ValueError, match=r"best_by is 'loss'; use a metric that begins with"):
        CheckpointConfig(best_by="loss")
