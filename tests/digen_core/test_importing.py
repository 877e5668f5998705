"""Modules of the user's: imported once, and anew when their files have changed."""

import os
import sys

import pytest

from digen_core.inputs.importing import imported


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield tmp_path / "module_of_mine.py"
    sys.modules.pop("module_of_mine", None)


def write(file, text, seconds):
    file.write_text(text)
    os.utime(file, (seconds, seconds))


def test_a_module_that_has_not_changed_is_imported_once(file):
    write(file, "made = object()", 1)
    assert imported("module_of_mine").made is imported("module_of_mine").made


def test_one_that_was_changed_between_two_runs_counts_as_it_is_now(file):
    """Workers of a running cluster would go on with the one that they began with."""
    write(file, "score = before = 1", 1)
    assert imported("module_of_mine").score == 1
    write(file, "score = 2", 2)
    changed = imported("module_of_mine")
    assert changed.score == 2
    assert not hasattr(changed, "before")


def test_one_that_could_not_be_imported_is_tried_again(file):
    write(file, "score = 1", 1)
    imported("module_of_mine")
    write(file, "score = 1 / 0", 2)
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            imported("module_of_mine")
    write(file, "score = 3", 3)
    assert imported("module_of_mine").score == 3


def test_one_that_is_gone_is_said_to_be(file):
    write(file, "score = 1", 1)
    imported("module_of_mine")
    file.unlink()
    with pytest.raises(ModuleNotFoundError):
        imported("module_of_mine")


def test_modules_without_a_file_are_taken_as_they_are():
    assert imported("sys") is imported("sys") is sys
