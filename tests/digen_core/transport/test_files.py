"""Files that are written whole, or not at all."""

import errno
import os
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from digen_core.transport.files import (
    append_line,
    folder_written_whole,
    remove_folder,
    remove_leftovers,
    written_whole,
)


def write_half(path: Path, error: BaseException) -> None:
    with written_whole(path) as unfinished:
        unfinished.write_text("half")
        raise error


def test_a_body_that_fails_leaves_what_was_there(tmp_path):
    path = tmp_path / "profile.json"
    path.write_text("before")
    with pytest.raises(ValueError, match="half"):
        write_half(path, ValueError("half way"))
    assert {own.name: own.read_text() for own in tmp_path.iterdir()} == {"profile.json": "before"}


def test_two_that_write_a_file_at_once_do_not_meet(tmp_path):
    """As a worker that is taken for lost and the one that does its work again."""
    path = tmp_path / "image.png"
    with written_whole(path) as first:
        first.write_text("first")
        with written_whole(path) as second:
            second.write_text("second")
        assert path.read_text() == "second"
    assert [(own.name, own.read_text()) for own in tmp_path.iterdir()] == [("image.png", "first")]


def test_a_folder_that_somebody_reads_on_nfs_is_removed_all_the_same(tmp_path, monkeypatch):
    """There a file that is open stays under another name, and so does its folder."""

    def rmdir(path, *, dir_fd=None):
        raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), str(path))

    folder = tmp_path / "v0001"
    folder.mkdir()
    (folder / "manifest.json").touch()
    with monkeypatch.context() as nfs:
        nfs.setattr(os, "rmdir", rmdir)
        remove_folder(folder)
    assert [own.name for own in tmp_path.iterdir()] == [".v0001.removed"]
    remove_leftovers(tmp_path)
    assert not list(tmp_path.iterdir())


def test_what_a_killed_process_left_is_removed_and_nothing_else(tmp_path):
    kept = [
        "profile.json",
        ".lock",
        ".explain",
        "metrics/iteration-000001.json",
        "a.1",
        ".v0001.2/x",
    ]
    left = [
        ".profile.json.8",
        "metrics/.iteration-000002.json.4123",
        "profiles/.worker-0-train.json.gz.77.json.gz",
        ".v2.unfinished/x",
        ".v3.removed/x",
    ]
    for name in (*kept, *left):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    remove_leftovers(tmp_path)
    found = {str(own.relative_to(tmp_path)) for own in tmp_path.rglob("*") if own.is_file()}
    assert found == set(kept)


def test_what_is_left_has_the_name_that_is_removed(tmp_path, monkeypatch):
    monkeypatch.setattr(Path, "unlink", lambda *arguments, **options: None)  # as if it were killed
    with pytest.raises(KeyboardInterrupt):
        write_half(tmp_path / "profile.json", KeyboardInterrupt())
    monkeypatch.undo()
    assert len(list(tmp_path.iterdir())) == 1
    remove_leftovers(tmp_path)
    assert not list(tmp_path.iterdir())


def test_who_may_read_a_folder_may_read_its_files(tmp_path):
    """Safetensors writes files that nobody else may read: no server, and no pod of another user."""
    with folder_written_whole(tmp_path / "model") as unfinished:
        (unfinished / "transformer").mkdir()
        save_file({"a": np.zeros(1)}, unfinished / "transformer" / "weights.safetensors")
        (unfinished / "config.json").touch()
    weights = tmp_path / "model" / "transformer" / "weights.safetensors"
    assert weights.stat().st_mode == (tmp_path / "model" / "config.json").stat().st_mode


def test_half_a_line_of_a_writer_that_was_killed_goes(tmp_path):
    path = tmp_path / "events.jsonl"
    append_line(path, "one")
    append_line(path, "two")
    for half in (b"", b"thr"):
        path.write_bytes(b"one\ntwo\n" + half)
        append_line(path, "four")
        assert path.read_bytes() == b"one\ntwo\nfour\n"
    path.write_bytes(b"all of it")
    append_line(path, "one")
    assert path.read_bytes() == b"one\n"
