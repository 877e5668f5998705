"""The policy versions in the file of a run."""

import json

from tasks.tracking.versions import VERSIONS_OF_RUN, note_versions


def noted(run_dir):
    lines = (run_dir / VERSIONS_OF_RUN).read_text().splitlines()
    return [(line["version"], line["hash"], line["parent"]) for line in map(json.loads, lines)]


def test_a_version_is_added_to_a_file_that_is_neither_read_nor_written_again(tmp_path):
    path = tmp_path / VERSIONS_OF_RUN
    note_versions(tmp_path, {0: "a"})
    path.write_text("x" * 10_000 + "\n" + path.read_text())  # thousands of versions before it
    before, file = path.read_text(), path.stat().st_ino
    note_versions(tmp_path, {0: "a", 1: "b"})
    note_versions(tmp_path, {0: "a", 1: "b"})
    note_versions(tmp_path, {0: "a", 1: "b", 2: "c", 3: "d"})
    assert path.read_text().startswith(before)
    assert path.stat().st_ino == file
    path.write_text(path.read_text().removeprefix("x" * 10_000 + "\n"))
    assert noted(tmp_path) == [(0, "a", None), (1, "b", "a"), (2, "c", "b"), (3, "d", "c")]


def test_versions_that_are_made_again_take_the_place_of_the_others(tmp_path):
    note_versions(tmp_path, {0: "a", 1: "b", 2: "c", 3: "d"})
    note_versions(tmp_path, {1: "b"})  # where the run goes on from
    assert noted(tmp_path) == [(0, "a", None), (1, "b", "a")]
    note_versions(tmp_path, {1: "b", 2: "other"})
    assert noted(tmp_path) == [(0, "a", None), (1, "b", "a"), (2, "other", "b")]


def test_half_a_line_goes(tmp_path):
    note_versions(tmp_path, {0: "a", 1: "b"})
    path = tmp_path / VERSIONS_OF_RUN
    path.write_text(path.read_text()[:-20])
    note_versions(tmp_path, {0: "a", 1: "b", 2: "c"})
    assert noted(tmp_path) == [(0, "a", None), (1, "b", "a"), (2, "c", "b")]


def test_half_a_line_goes_also_where_no_version_is_new(tmp_path):
    """As of a run that was killed, and goes on from the version before."""
    note_versions(tmp_path, {0: "a", 1: "b", 2: "c"})
    path = tmp_path / VERSIONS_OF_RUN
    path.write_text(path.read_text()[:-20])
    note_versions(tmp_path, {1: "b"})
    assert noted(tmp_path) == [(0, "a", None), (1, "b", "a")]
