"""What an evaluation says of a run that is no longer as it was."""

import os
import shutil
from types import SimpleNamespace

import pytest

from digen_core.checkpoints.judging import Judging
from digen_core.checkpoints.manifest import (
    CHECKPOINTS_OF_RUN,
    LINEAGE_OF_RUN,
    DamagedError,
    Lineage,
    name_of_state,
)
from digen_core.checkpoints.tensors import write_checkpoint
from digen_core.config.load import CONFIG_OF_RUN
from digen_core.config.run import RunConfig
from digen_core.data.prompts import evaluation_prompts, prompts_hash, train_prompts
from digen_core.errors import UserError
from digen_core.preflight.run import check_judged
from flows import evaluate_run as flow
from flows.runtime.progress import Progress
from support.checkpoints import position_of, state_of


@pytest.fixture
def checkpoints(tmp_path):
    """Two of a run, whose second is cut off."""
    folder = tmp_path / CHECKPOINTS_OF_RUN
    paths = [write_checkpoint(folder, state_of(v), position_of(v)) for v in (1, 2)]
    cut_off(paths[1])
    return paths


def cut_off(checkpoint):
    (checkpoint / name_of_state(0, 1)).write_bytes(b"")


@pytest.fixture
def told(monkeypatch):
    texts = []
    monkeypatch.setattr(flow, "notify", lambda run, event, text: texts.append(text))
    return texts


@pytest.fixture
def judged(tmp_path):
    """A run that keeps a fifth of its prompts for evaluation; it began with ten."""
    words = [f"a word {number}" for number in range(10)]
    (tmp_path / "mine.txt").write_text("\n".join(words))
    prompts = {"train": str(tmp_path / "mine.txt"), "evaluation_fraction": 0.2}
    config = RunConfig.model_validate({"prompts": prompts, "rewards": {"motion": 1.0}})
    (tmp_path / CONFIG_OF_RUN).write_text(config.model_dump_json())
    lineage = Lineage(
        run_id="r",
        mlflow_run_id="m",
        flow_run_ids=[],
        prompts_hash=prompts_hash(train_prompts(config)),
        evaluation_prompts_hash=prompts_hash(evaluation_prompts(config)),
    )
    (tmp_path / LINEAGE_OF_RUN).write_text(lineage.model_dump_json())
    return SimpleNamespace(run_dir=tmp_path)


def test_it_is_told_that_prompts_have_changed_since_a_run_began(judged, told):
    flow.tell_of_changed_prompts(judged, own=True)
    assert told == []
    (judged.run_dir / "mine.txt").write_text("\n".join(f"a word {n}" for n in range(3, 20)))
    flow.tell_of_changed_prompts(judged, own=False)
    (text,) = told
    assert text.startswith(f"prompts.train: the content of {judged.run_dir}/mine.txt has changed ")
    assert text.endswith("; what it is evaluated on may be what it was trained on")
    flow.tell_of_changed_prompts(judged, own=True)
    assert told[2].startswith(f"prompts.evaluation: the content of {judged.run_dir}/mine.txt has")
    (judged.run_dir / LINEAGE_OF_RUN).write_text("{")
    flow.tell_of_changed_prompts(judged, own=True)
    assert len(told) == 3


def test_it_is_told_that_an_older_version_is_evaluated(checkpoints, tmp_path, told):
    run = SimpleNamespace(run_dir=tmp_path, progress=SimpleNamespace(damaged=()))
    flow.tell_of_damaged(run)
    (text,) = told
    assert text.startswith(f"checkpoint {checkpoints[1]} is damaged: ")
    assert text.endswith("; the one before is evaluated")
    assert flow.newest_checkpoint(run) == checkpoints[0]


@pytest.fixture
def read(checkpoints, tmp_path, told):
    """A run of which the first of three checkpoints is read, and what is told of that."""
    write_checkpoint(tmp_path / CHECKPOINTS_OF_RUN, state_of(3), position_of(3))
    run = SimpleNamespace(run_dir=tmp_path, progress=Progress())
    run.progress.begin_with(checkpoints[0])
    return run, told


def test_a_checkpoint_that_is_damaged_is_left_out(read):
    run, told = read
    flow.leave_out(run, DamagedError("v0001 is damaged"))
    assert run.progress.damaged == {run.progress.checkpoint}
    assert told == ["v0001 is damaged; another one is evaluated"]


def test_one_that_the_run_has_removed_meanwhile_is_no_damage(read, tmp_path):
    """It trains, and the newest checkpoint was another one when the model began to load."""
    run, told = read
    shutil.rmtree(run.progress.checkpoint)
    flow.leave_out(run, DamagedError("v0001 is damaged"))
    assert told == []
    assert flow.newest_checkpoint(run).name == "v0003"


def test_a_run_without_a_whole_version_is_refused_before_anything_starts(checkpoints, tmp_path):
    cut_off(checkpoints[0])
    with pytest.raises(DamagedError, match=r"v0002 is damaged: "):
        check_judged(RunConfig(), tmp_path, Judging())


def test_the_newest_run_with_a_version_is_evaluated(tmp_path):
    """Whatever is with older ones, such as a disk that is not there any more."""
    for age, name in enumerate(("without a version", "newest", "elsewhere", "older")):
        (tmp_path / name).mkdir()
        config = tmp_path / name / CONFIG_OF_RUN
        config.touch()
        os.utime(config, (1e9 - age, 1e9 - age))
    (tmp_path / "elsewhere" / CHECKPOINTS_OF_RUN).symlink_to(tmp_path / "gone")
    for name in ("newest", "older"):
        write_checkpoint(tmp_path / name / CHECKPOINTS_OF_RUN, state_of(1), position_of(1))
    assert flow.latest_run(tmp_path) == tmp_path / "newest"
    shutil.rmtree(tmp_path / "newest")
    with pytest.raises(UserError, match="which is not there; mount its disk"):
        flow.latest_run(tmp_path)
