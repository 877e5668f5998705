"""A power cut at any moment: what is left of a run can be resumed, and nothing is lost that counts.

Of a whole run, with a resume in the middle, each change of its folder and each sync is recorded;
``support.power_cuts`` says what may be left of them.
"""

import json
import logging
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from random import Random

import pytest

from support.after_a_cut import check_resume
from support.checkpoints import names_in
from support.disk_recorder import Step
from support.power_cuts import SURVIVES, Disk, disks
from support.resumed import ITERATIONS, check_run
from support.runs import training_in_mlflow

pytestmark = pytest.mark.nightly

POINTS = 250


def cut(disk: Disk, folder: Path, survives, dice: Random) -> Path:
    """Write what a cut leaves into a folder, in place of what was in it."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    disk.cut(folder, survives, dice)
    return folder


def test_the_record_has_all_that_was_written(recorded, tmp_path):
    (disk,) = disks(recorded.steps, recorded.contents, [len(recorded.steps) - 1])
    left = cut(disk, tmp_path / "left", "all", Random(0)) / recorded.run_dir.name
    assert contents_of(left) == contents_of(recorded.whole)
    assert disk.promised == ITERATIONS
    synced = cut(disk, tmp_path / "synced", "what is synced", Random(0)) / recorded.run_dir.name
    not_synced = contents_of(recorded.whole).items() - contents_of(synced).items()
    assert {path for path, _ in not_synced} == {".lock"}


def contents_of(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.mark.timeout(900)
@pytest.mark.parametrize("points", [POINTS, pytest.param(None, marks=pytest.mark.operation)])
def test_what_a_cut_leaves_is_resumed(points, recorded, tmp_path, caplog):
    """At some points dice choose what survives; at all of them (None) it is two things each."""
    caplog.set_level(logging.WARNING)
    every, dice = range(len(recorded.steps)), Random(0)
    chosen = sorted(dice.sample(every, points)) if points else every
    taken = set()
    for number, disk in zip(chosen, disks(recorded.steps, recorded.contents, chosen), strict=True):
        some = dice.choice(SURVIVES)
        for survives in [some] if points else [SURVIVES[number % 3], "some of the rest"]:
            runs_dir = cut(disk, tmp_path / "runs", survives, dice)
            try:
                version = check_resume(runs_dir, recorded.config, disk.promised, recorded.whole)
            except Exception as error:
                error.add_note(f"cut after step {number}; what survives is {survives}")
                raise
            assert not caplog.records, f"after step {number}, of which survives {survives}"
            taken.add(version)
    assert taken == set(range(ITERATIONS + 1))


def last(steps: list[Step], condition) -> int:
    """Return the last of the steps, in the order they were taken, for which a condition holds."""
    return max(number for number, step in enumerate(steps) if condition(number, step))


def is_before_its_lineage(number: int, step: Step) -> bool:
    names = {path.partition("/")[2] for path in step.tree}
    return "tracking/run.json" in names and "lineage.json" not in names


def is_before_its_environment(number: int, step: Step) -> bool:
    names = {path.partition("/")[2] for path in step.tree}
    return "tracking/run.json" in names and "environment.txt" not in names


MOMENTS = {
    "when it begins to track": (is_before_its_environment, "all"),
    "before its lineage is written": (is_before_its_lineage, "what is synced"),
    "when a version was kept": (lambda _, step: step.promised == 4, "what is synced"),
    "when the last version was kept": (lambda _, step: step.promised == 5, "and all names"),
    "in the middle": (lambda number, _: number <= 400, "some of the rest"),
}


def put_back(database: Path, place: Path) -> None:
    """Have another content in a database that processes hold open."""
    with closing(sqlite3.connect(database)) as old, closing(sqlite3.connect(place)) as now:
        old.backup(now)


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_run_that_is_resumed_after_a_cut_is_the_same_run(moment, recorded, tmp_path):
    from flows.post_train import post_train

    condition, survives = MOMENTS[moment]
    at = last(recorded.steps, condition)
    (disk,) = disks(recorded.steps, recorded.contents, [at])
    run_dir = recorded.run_dir
    left = cut(disk, tmp_path / "runs", survives, Random(at)) / run_dir.name
    shutil.rmtree(run_dir)
    shutil.move(left, run_dir)
    put_back(recorded.contents / disk.database, run_dir.parent / "mlflow.db")
    assert not (run_dir / "lora").exists(), "it is over"
    post_train(recorded.config, str(run_dir))
    check_run(run_dir, recorded.config)
    training_in_mlflow(run_dir.parent)  # the only one
    lines = [json.loads(line) for line in (run_dir / "versions.jsonl").read_text().splitlines()]
    assert [line["version"] for line in lines] == list(range(ITERATIONS + 1))
    assert names_in(run_dir / "checkpoints") == ["v0004", "v0005"]
    assert {"lora", "model", "environment.txt"} < {path.name for path in run_dir.iterdir()}
