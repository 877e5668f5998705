"""Errors of disks name the folder."""

from pathlib import Path

import pytest
from safetensors import SafetensorError

from flows.runtime.disk import CannotWriteError, naming, naming_full_disk

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


def test_errors_of_networks_and_of_other_files_are_no_disks():
    for error in (ConnectionResetError(104, "reset"), FileNotFoundError(2, "none")):
        with pytest.raises(type(error)), naming_full_disk(FOLDER):
            raise error
