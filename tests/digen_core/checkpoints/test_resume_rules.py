"""What may change when a run goes on, and what is refused with one line."""

import errno
import fcntl
import os
import re
from pathlib import Path

import pytest

from deployments.cli import run
from deployments.overrides import config_of
from digen_core.checkpoints.manifest import LINEAGE_OF_RUN, name_of_state
from digen_core.checkpoints.resume import newest_run, resumption_of
from digen_core.checkpoints.retention import evaluations_of
from digen_core.checkpoints.run_state import LOCK_OF_RUN
from digen_core.checkpoints.tensors import write_checkpoint
from digen_core.config.load import CONFIG_OF_RUN, load_config
from digen_core.config.run import RunConfig
from digen_core.errors import UserError
from digen_core.records import EvaluationReport, IterationRecord
from digen_core.transport.files import try_lock
from digen_core.transport.metrics import read_metrics, write_metrics
from digen_core.transport.profiles import folder_of as profiles_of
from flows.reopen import discard, folder_to_resume, locked, resuming
from support.checkpoints import EVALUATION_PROMPTS, PROMPTS, position_of, state_of

TOML = """\
num_iterations = 10
[prompts]
train = "train.txt"
evaluation = "evaluation.txt"
[rollout]
group_size = 8
fragment_size = 4
[train]
lora = {rank = 4}
"""


@pytest.fixture
def run_dir(tmp_path, monkeypatch):
    """A run that has finished four iterations."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.txt").write_text("\n".join(PROMPTS))
    (tmp_path / "evaluation.txt").write_text("\n".join(EVALUATION_PROMPTS))
    (tmp_path / "job.toml").write_text(TOML)
    (tmp_path / "dance.toml").write_text(TOML + '[algorithm]\ntype = "dance_grpo"\n')
    config, folder = load_config("job.toml"), tmp_path / "runs" / "test-1"
    for version in (3, 4):
        position = position_of(version, config)
        write_checkpoint(folder / "checkpoints", state_of(version), position)
    (folder / CONFIG_OF_RUN).write_text(config.model_dump_json())
    (folder / LINEAGE_OF_RUN).write_text(position.lineage.model_dump_json())
    return folder


def changed(run_dir, *tokens: str) -> RunConfig:
    return config_of(tokens, "digen train", run_dir)


@pytest.mark.parametrize(
    "tokens",
    [
        "",
        "job.toml",
        "--num-iterations 12 --max-minutes 5",
        "--num-iterations 4",
        "--schedule.layout elastic --schedule.max-stale-share 0.5 --cluster.rollout-workers 3",
        "--rollout.fragment-size 8 --rollout.batch-size 16 --rollout.steps-per-task 2",
        "--train.pack-size 3",
        "--checkpoints.keep-every 5 --tracking.experiment other --evaluation.every 3",
        "--model.device cpu --train.gradient-checkpointing true",
        "--model.offload ['text_encoders','vae','transformer'] --model.vae-slicing true",
        "--rollout.cuda-graphs true",
        "--train.max-replay-error 0.05 --train.min-gradient-cosine 0.9 --numerics.patience 20",
        "--rewards.shapes.pool judges --cluster.reward-workers.judges 1",
    ],
)
def test_how_and_where_a_run_works_may_change(run_dir, tokens):
    found = resumption_of(changed(run_dir, *tokens.split()), run_dir)
    assert found.checkpoint == run_dir / "checkpoints" / "v0004"
    assert (found.num_iterations, found.manifest.version) == (4, 4)
    assert found.lineage.mlflow_run_id == "0123"


@pytest.mark.parametrize(
    "token",
    [
        "judge.url http://127.0.0.1:8001/v1",
        "judge.max_attempts 9",
        "judge.concurrency 1",
        "judge.token_variable TOKEN",
        "judge.max_tokens 1024",
        "clipscore.batch_size 4",
    ],
)
def test_how_a_reward_is_asked_may_change(run_dir, token):
    judge = ["--rewards.judge.url", "http://127.0.0.1:8000/v1", "--rewards.judge.model", "vlm"]
    before = changed(run_dir, *judge, "--rewards.clipscore", "1")
    (run_dir / CONFIG_OF_RUN).write_text(before.model_dump_json())
    key, value = token.split()
    now = changed(run_dir, f"--rewards.{key}", value)
    assert now != changed(run_dir)
    assert resumption_of(now, run_dir).num_iterations == 4


def test_options_of_a_reward_of_ones_own_may_not_change_whatever_they_are_called(run_dir):
    name = "rewards.my_rewards:Likeness"
    tokens = ["--rewards", '{"my_rewards:Likeness" = {options = {max_tokens = 77}}}']
    before = changed(run_dir, *tokens)
    (run_dir / CONFIG_OF_RUN).write_text(before.model_dump_json())
    rewards = {"my_rewards:Likeness": before.rewards["my_rewards:Likeness"]}
    rewards = {
        n: own.model_copy(update={"options": {"max_tokens": 9}}) for n, own in rewards.items()
    }
    with pytest.raises(UserError, match=f"{name}.options.max_tokens was 77 and is now 9; leave"):
        resumption_of(before.model_copy(update={"rewards": rewards}), run_dir)
    rewards = {n: own.model_copy(update={"max_attempts": 9}) for n, own in before.rewards.items()}
    resumption_of(before.model_copy(update={"rewards": rewards}), run_dir)


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        ("--seed 1", "seed was 0 and is now 1; leave that as it was, or start a new run"),
        ("--train.learning-rate 0.1", "train.learning_rate was 0.0003 and is now 0.1"),
        ("--train.lora.rank 8", "train.lora.rank was 4 and is now 8"),
        ("--train.lora null", "train.lora was a table and is now null"),
        ("--model.dtype bfloat16", 'model.dtype was "float32" and is now "bfloat16"'),
        ("dance.toml", 'algorithm.type was "flow_grpo" and is now "dance_grpo"'),
        (
            "--rewards.jpeg_compressibility 1",
            "rewards.jpeg_compressibility was not there and is now a table",
        ),
        ("--rollout.group-size 16", "rollout.group_size was 8 and is now 16"),
        ("--num-iterations 3", "num_iterations is 3, but"),
    ],
)
def test_what_a_run_learns_may_not_change(run_dir, tokens, message):
    with pytest.raises(UserError) as error:
        resumption_of(changed(run_dir, *tokens.split()), run_dir)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_many_changes_are_counted(run_dir):
    tokens = "--seed 1 --rollout.group-size 16 --rollout.num-steps 4 --train.weight-decay 1 "
    with pytest.raises(UserError, match="and 2 more; leave"):
        resumption_of(changed(run_dir, *tokens.split(), "--train.adam-eps", "1"), run_dir)


def test_with_a_decaying_learning_rate_the_number_of_iterations_stays(run_dir):
    cosine = ["--train.learning-rate-decay", "cosine"]
    (run_dir / CONFIG_OF_RUN).write_text(changed(run_dir, *cosine).model_dump_json())
    resumption_of(changed(run_dir), run_dir)
    with pytest.raises(UserError, match="was 10 and is now 12, but with"):
        resumption_of(changed(run_dir, "--num-iterations", "12"), run_dir)


@pytest.mark.parametrize("name", ["train", "evaluation"])
def test_of_prompts_the_content_counts_not_the_place(run_dir, tmp_path, name):
    moved = (tmp_path / f"{name}.txt").rename(tmp_path / "moved.txt")
    config = changed(run_dir, f"--prompts.{name}", "moved.txt")
    assert resumption_of(config, run_dir).num_iterations == 4
    moved.write_text("a green circle")
    with pytest.raises(UserError, match=f"prompts.{name}: the content of moved.txt has changed"):
        resumption_of(config, run_dir)


def test_how_many_prompts_are_emptied_may_not_change(run_dir):
    config = changed(run_dir)
    prompts = config.prompts.model_copy(update={"empty_fraction": 0.2})
    with pytest.raises(UserError, match=r"prompts.empty_fraction was 0.0 and is now 0.2"):
        resumption_of(config.model_copy(update={"prompts": prompts}), run_dir)


def test_a_damaged_checkpoint_is_told_and_the_one_before_is_used(run_dir):
    file = run_dir / "checkpoints" / "v0004" / name_of_state(0, 1)
    file.write_bytes(file.read_bytes()[:-1])
    found = resumption_of(changed(run_dir), run_dir)
    assert (found.checkpoint.name, found.num_iterations) == ("v0003", 3)
    (complaint,) = found.damaged
    assert str(complaint).startswith(f"checkpoint {file.parent} is damaged")


def test_a_run_that_was_killed_before_its_first_update_begins_anew(run_dir):
    for version in ("v0003", "v0004"):
        (run_dir / "checkpoints" / version).rename(run_dir / version)
    found = resumption_of(changed(run_dir), run_dir)
    assert (found.checkpoint, found.num_iterations) == (None, 0)


def test_what_came_after_the_checkpoint_is_removed(run_dir):
    for iteration in range(6):
        record = IterationRecord(iteration, iteration + 1, 1.0, {"reward/mean": 0.5})
        write_metrics(run_dir / "metrics", record)
        (run_dir / "samples").mkdir(exist_ok=True)
        (run_dir / "samples" / f"iteration-{iteration:06d}.parquet").touch()
        (run_dir / "images" / f"iteration-{iteration:06d}").mkdir(parents=True)
        (run_dir / "images" / f"iteration-{iteration:06d}" / "g00-s00.png").touch()
    for tag, version in {"before": 0, "iteration-0004": 4, "iteration-0005": 5}.items():
        report = EvaluationReport(version=version, num_prompts=1, num_samples=1, rewards={})
        (run_dir / "evaluation").mkdir(exist_ok=True)
        (run_dir / "evaluation" / f"{tag}.json").write_text(report.model_dump_json())
    (run_dir / "timelines").mkdir()
    for number in (3, 4, 5):
        (run_dir / "timelines" / f"iteration-{number:04d}.png").touch()
        profile = profiles_of(run_dir, number - 1) / "worker-0-train.txt"
        profile.parent.mkdir(parents=True)
        profile.touch()
    discard(run_dir, resumption_of(changed(run_dir), run_dir))
    assert [record.iteration for record in read_metrics(run_dir / "metrics")] == [0, 1, 2, 3]
    assert len(list((run_dir / "samples").iterdir())) == 4
    assert len(list((run_dir / "images").rglob("*.png"))) == 4
    assert evaluations_of(run_dir).keys() == {"before", "iteration-0004"}
    assert sorted(p.name for p in (run_dir / "timelines").iterdir()) == [
        "iteration-0003.png", "iteration-0004.png",
    ]  # fmt: skip
    kept = sorted(path.parent.name for path in (run_dir / "profiles").rglob("*.txt"))
    assert kept == ["iteration-0003", "iteration-0004"]


def test_a_worker_that_was_given_up_may_still_write_what_is_removed(run_dir, monkeypatch):
    """A run that goes back by itself ends no task of a worker: that keeps its image meanwhile."""
    image, rmdir = run_dir / "images" / "iteration-000005" / "g00-s00.png", os.rmdir

    def keep():
        image.parent.mkdir(parents=True, exist_ok=True)
        image.touch()

    def rmdir_late(path, *, dir_fd=None):
        keep()
        rmdir(path, dir_fd=dir_fd)

    keep()
    monkeypatch.setattr(os, "rmdir", rmdir_late)
    discard(run_dir, resumption_of(changed(run_dir), run_dir))
    assert [own.name for own in (run_dir / "images").iterdir()] == ["iteration-000005"]


def test_two_do_not_write_to_one_run(run_dir):
    with locked(run_dir), pytest.raises(UserError) as error, resuming(changed(run_dir), run_dir):
        pass
    assert str(error.value).startswith(f"{run_dir} is being trained by process {os.getpid()} on ")
    with resuming(changed(run_dir), run_dir):  # it was let go
        pass


def test_a_disk_without_locks_is_told_in_one_line(run_dir, monkeypatch):
    def flock(file, kind):
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(fcntl, "flock", flock)
    told = f"{run_dir / LOCK_OF_RUN} cannot be locked (Function not implemented); mount its disk"
    with pytest.raises(UserError, match=re.escape(told)), locked(run_dir):
        pass


def test_who_looks_at_a_run_does_not_keep_it_from_being_resumed(run_dir, monkeypatch):
    """As `digen ls`, which shares the lock of a run for a moment to see whether it is trained."""
    look = try_lock(run_dir / LOCK_OF_RUN, shared=True)
    assert look.__enter__()
    monkeypatch.setattr(
        "digen_core.transport.files.sleep", lambda _: look.__exit__(None, None, None)
    )
    with resuming(changed(run_dir), run_dir):
        pass


def test_a_run_that_is_being_trained_is_refused_before_anything_starts(
    run_dir, capsys, monkeypatch
):
    def starts(*args):
        raise AssertionError("something was started")

    monkeypatch.setattr("deployments.local.run_training", starts)
    monkeypatch.setattr("digen_core.preflight.run.check_run", starts)
    with locked(run_dir):
        assert run(["train", "--resume", "runs/test-1"]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert f"runs/test-1 is being trained by process {os.getpid()} on " in err


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        (["--resume", "nowhere"], "there is no run folder nowhere"),
        (["job.toml", "--resume", "nowhere"], "there is no run folder nowhere"),
        (["--resume", "."], ". is no run: it has no readable config.json"),
        (["--resume", "runs/test-1", "--seed", "3"], "seed was 0 and is now 3"),
        (["--resume", "runs/test-1", "--sede", "3"], "unknown key sede; did you mean seed?"),
    ],
)
def test_a_wrong_resumption_is_one_line_before_anything_starts(
    run_dir, tokens, message, capsys, monkeypatch
):
    monkeypatch.setattr("digen_core.preflight.run.check_inputs", lambda config: None)
    assert run(["train", *tokens]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert message in err


@pytest.mark.parametrize(
    ("folders", "newest"),
    [
        ([], None),
        (["test-20260101-120000"], "test-20260101-120000"),
        (["test-20260101-120000-9", "test-20260101-120000-10"], "test-20260101-120000-10"),
        (["test-20260101-120000-3", "test-20260101-120001"], "test-20260101-120001"),
        (["test-b-20270101-120000", "test-20260101-120000"], "test-20260101-120000"),
        (["test-1", "test", "up"], None),
    ],
)
def test_the_newest_run_of_a_name(folders, newest, tmp_path):
    config = RunConfig.model_validate({"name": "test", "tracking": {"runs_dir": str(tmp_path)}})
    for folder in folders:
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "config.json").touch()
    (tmp_path / "test-20990101-120000").mkdir()  # of no run: it has no config
    assert newest_run(config) == (tmp_path / newest if newest else None)
    assert folder_to_resume(config, "auto") == newest_run(config)
    assert folder_to_resume(config, "") is None
    assert folder_to_resume(config, "runs/other") == Path("runs/other")


@pytest.mark.parametrize("given", [".", "spans/..", "../{name}/."])
def test_the_folder_that_digen_is_called_in_has_a_name(given, tmp_path, monkeypatch):
    (tmp_path / "spans").mkdir()
    monkeypatch.chdir(tmp_path)
    found = folder_to_resume(RunConfig(), given.format(name=tmp_path.name))
    assert found is not None
    assert (found.resolve(), found.name) == (tmp_path, tmp_path.name)


def test_auto_goes_on_with_the_newest_run_and_with_no_other(run_dir, capsys, monkeypatch):
    monkeypatch.setattr("digen_core.preflight.run.check_inputs", lambda config: None)
    name = f"{changed(run_dir, 'job.toml').name}-20260101-120000"
    run_dir.rename(run_dir.parent / name)
    assert run(["train", "job.toml", "--resume", "auto", "--seed", "3"]) == 2
    refusal = f"runs/{name} cannot go on as what would be another run: seed was 0 and is now 3"
    assert refusal in capsys.readouterr().err
    assert run(["train", "--resume", "auto"]) == 2
    assert "which config?" in capsys.readouterr().err
