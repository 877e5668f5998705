"""A power cut while each way to write is under way: nothing is there by halves, or lost after."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest

from digen_core.transport.files import (
    append_line,
    folder_written_whole,
    make_folder,
    remove_folder,
    replace_text,
)
from digen_core.transport.trajectories import folder_of, prune_trajectories
from support.disk_recorder import recording, steps_in
from support.power_cuts import SURVIVES, disks
from tasks.tracking.spool import RunOfSpool, Spool

FILES = {"a": "first", "in/side": "second"}
DRAWS = 20


@pytest.fixture
def cuts(tmp_path) -> Callable[..., Iterator[tuple[Path, bool]]]:
    """Return a function that yields what cuts leave of a run's folder while a function acts on it.

    And whether the function had returned.
    """

    def cuts_while(act: Callable[[Path], None], *before: Callable[[Path], None]):
        root, store, left = tmp_path / "runs", tmp_path / "store", tmp_path / "left"
        root.mkdir()
        with recording(root, store) as recorder:
            make_folder(root / "test-1")
            for prepare in before:
                prepare(root / "test-1")
            recorder.promise(0)
            act(root / "test-1")
            recorder.promise(1)
        steps, dice = steps_in(store), Random(0)
        for disk in disks(steps, store / "contents", range(len(steps))):
            for survives in (*SURVIVES[:3], *[SURVIVES[3]] * DRAWS):
                if disk.promised is not None:
                    shutil.rmtree(left, ignore_errors=True)
                    left.mkdir()
                    disk.cut(left, survives, dice)
                    yield left / "test-1", disk.promised == 1

    return cuts_while


def written(folder: Path, files: dict[str, str]) -> None:
    with folder_written_whole(folder) as unfinished:
        for name, text in files.items():
            (unfinished / name).parent.mkdir(exist_ok=True)
            (unfinished / name).write_text(text)


def files_in(folder: Path) -> dict[str, str]:
    found = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_text() for path in found}


def test_a_file_is_the_old_one_or_the_new_one(cuts):
    found = set()
    for left, is_over in cuts(
        lambda run_dir: replace_text(run_dir / "a", "new"),
        lambda run_dir: replace_text(run_dir / "a", "old"),
    ):
        found.add(((left / "a").read_text(), is_over))
    assert found == {("old", False), ("new", False), ("new", True)}


def test_a_line_is_there_when_it_was_added_and_those_before_stay(cuts):
    found = set()
    for left, is_over in cuts(
        lambda run_dir: [append_line(run_dir / "a", line) for line in ("one", "two")]
    ):
        text = (left / "a").read_text() if (left / "a").exists() else ""
        found.add((tuple(text.split("\n")[:-1]), is_over))
    lines = ((), ("one",), ("one", "two"))
    assert {own for own, _ in found} == set(lines)
    assert {own for own, is_over in found if is_over} == {lines[2]}


def test_a_folder_is_there_when_it_was_made(cuts):
    found = {
        ((left / "a" / "b").is_dir(), is_over)
        for left, is_over in cuts(lambda run_dir: make_folder(run_dir / "a" / "b"))
    }
    assert found == {(False, False), (True, False), (True, True)}


@pytest.mark.parametrize("before", [{}, {"a": "old", "other": "old"}])
def test_a_folder_is_whole_or_not_there(before, cuts):
    found = []
    for left, is_over in cuts(
        lambda run_dir: written(run_dir / "a", FILES),
        *([lambda run_dir: written(run_dir / "a", before)] if before else []),
    ):
        if (left / "a").exists() or is_over:
            found.append(files_in(left / "a"))
            assert found[-1] in ([FILES] if is_over else [FILES, before])
    assert FILES in found


def test_a_folder_is_removed_whole(cuts):
    for left, _ in cuts(
        lambda run_dir: remove_folder(run_dir / "a"), lambda run_dir: written(run_dir / "a", FILES)
    ):
        assert not (left / "a").exists() or files_in(left / "a") == FILES


def test_trajectories_of_an_iteration_go_together(cuts):
    for left, _ in cuts(
        lambda run_dir: prune_trajectories(run_dir, newest=1, keep=1),
        lambda run_dir: written(folder_of(run_dir, 0), FILES),
    ):
        kept = folder_of(left, 0)
        assert not kept.exists() or files_in(kept) == FILES


def test_what_mlflow_did_not_take_is_sent_or_set_aside(cuts):
    run = RunOfSpool(uri="http://x", experiment_id="1", mlflow_run_id="r", name="run")

    def refused(run_dir: Path) -> None:
        spool = Spool.create(run_dir, run)
        spool.append("a", "tags")
        ((entry, length),) = spool.unsent()
        spool.set_aside(entry, "no")
        spool.acknowledge(1, length)

    num_over = 0
    for left, is_over in cuts(refused):
        if (spool := Spool.open(left)) and list(spool.read()):
            kept = [*(entry for entry, _ in spool.unsent()), *spool.aside()]
            assert {entry["key"] for entry in kept} == {"a"}
            num_over += is_over
    assert num_over
