"""Errors of disks name the folder."""

import re
from pathlib import Path

import pytest
from safetensors import SafetensorError

from digen_core.errors import UserError
from flows.runtime.disk import CannotWriteError, naming, naming_full_disk, naming_lost_folder

FOLDER = Path("runs/x")


@pytest.mark.parametrize("named", [naming, naming_full_disk])
def test_a_full_disk_names_the_folder_and_keeps_what_was_noted(named):
    def write() -> None:
        try:
            Path("/dev/full").write_text("x")
        except OSError as error:
            error.add_note("after iteration 3")
            raise

    with pytest.raises(CannotWriteError) as caught, named(FOLDER):
        write()
    assert str(caught.value) == "cannot write to runs/x: No space left on device"
    assert caught.value.__notes__ == ["after iteration 3"]


def test_what_writes_weights_is_named_too():
    match = "cannot write to runs/x: I/O error: No space"
    with pytest.raises(CannotWriteError, match=match), naming(FOLDER):
        raise SafetensorError("I/O error: No space left on device (os error 28)")


def test_a_folder_that_was_moved_away_is_named(tmp_path):
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    (run_dir / "config.json").write_text("{}")
    for error in (FileNotFoundError(2, "none"), RuntimeError("task failed")):
        with pytest.raises(type(error)), naming_lost_folder(run_dir):
            raise error
    run_dir.rename(tmp_path / "moved")
    with pytest.raises(UserError, match="wrong input"), naming_lost_folder(run_dir):
        raise UserError("wrong input")
    told = f"the run's folder {run_dir} has gone while it was trained; if it was moved, go on with"
    with pytest.raises(CannotWriteError, match=re.escape(told)), naming_lost_folder(run_dir):
        (run_dir / "entries.jsonl").open("ab+")


def test_errors_of_networks_and_of_other_files_are_no_disks():
    for error in (ConnectionResetError(104, "reset"), FileNotFoundError(2, "none")):
        with pytest.raises(type(error)), naming_full_disk(FOLDER):
            raise error
