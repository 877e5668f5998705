"""A checkpoint on disk: whole or not at all, whenever the process ends, and refused if damaged."""

import errno
import os
import re
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from digen_core.checkpoints import tensors as checkpoints
from digen_core.checkpoints.manifest import (
    MANIFEST,
    MANIFEST_SUM,
    DamagedError,
    last_checkpoint,
    name_of_state,
    read_manifest,
    sum_of,
)
from digen_core.checkpoints.tensors import last_state, read_checkpoint, write_checkpoint
from digen_core.errors import UserError
from support.checkpoints import assert_same, names_in, position_of, state_of

STATE = name_of_state(0, 1)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("average", [False, True])
@pytest.mark.parametrize("old", [False, True])
def test_a_state_comes_back_as_it_was(tmp_path, average, old, dtype):
    state, position = state_of(7, average=average, old=old, dtype=dtype), position_of(9, loss=0.5)
    path = write_checkpoint(tmp_path / "checkpoints", state, position)
    assert path.name == "v0007"
    assert_same(read_checkpoint(path), state)
    assert_same(last_state(tmp_path), state)
    manifest = read_manifest(path)
    assert manifest.version == 7
    assert {name: getattr(manifest, name) for name in dict(position)} == dict(position)


def test_who_may_read_the_manifest_may_read_the_state(tmp_path):
    path = write_checkpoint(tmp_path / "checkpoints", state_of(1), position_of(1))
    (path / "as usual").touch()
    assert (path / STATE).stat().st_mode == (path / "as usual").stat().st_mode


def test_versions_follow_each_other_by_number(tmp_path):
    for version in (9_999, 10_000, 99):
        write_checkpoint(tmp_path, state_of(version), position_of(version))
    found, complaints = last_checkpoint(tmp_path)
    assert (found.name, complaints) == ("v10000", [])


def test_a_version_that_is_made_again_takes_the_place_of_the_first(tmp_path):
    write_checkpoint(tmp_path, state_of(1), position_of(1))
    again = state_of(1, average=False)
    path = write_checkpoint(tmp_path, again, position_of(1))
    assert_same(read_checkpoint(path), again)
    assert names_in(tmp_path) == ["v0001"]


class KilledError(BaseException):
    pass


def dying(monkeypatch, moment: int) -> list[str]:
    """Have the process end before the n-th thing that is done to the disk; return what was done."""
    done: list[str] = []

    def before(name, call):
        def counted(*arguments, **options):
            if len(done) == moment:
                if name == "save_file":
                    arguments[1].write_bytes(b"half")
                raise KilledError
            done.append(name)
            return call(*arguments, **options)

        return counted

    for owner, name in (
        (checkpoints, "save_file"),
        (checkpoints, "sync"),
        (checkpoints.shutil, "rmtree"),
        (checkpoints.Path, "mkdir"),
        (checkpoints.Path, "rename"),
        (checkpoints.Path, "write_text"),
    ):
        monkeypatch.setattr(owner, name, before(name, getattr(owner, name)))
    return done


@pytest.mark.parametrize("last", [2, 3], ids=["the version again", "the next version"])
def test_whenever_the_process_ends_a_whole_checkpoint_is_there(tmp_path, monkeypatch, last):
    made, moment, ended = state_of(last, dtype=np.float64), 0, False
    while not ended:
        folder, states = tmp_path / str(moment), [state_of(1), state_of(2)]
        for state in states:
            write_checkpoint(folder, state, position_of(state.version))
        with monkeypatch.context() as patch:
            done = dying(patch, moment)
            with suppress(KilledError):
                write_checkpoint(folder, made, position_of(last))
                ended = True
        found, complaints = last_checkpoint(folder)
        kept = read_checkpoint(found)
        assert not complaints
        assert kept.weights_hash in {state.weights_hash for state in (*states, made)}
        assert kept.version >= 2 or (last == 2 and "rename" in done)
        write_checkpoint(folder, made, position_of(last))  # the update is made again
        assert_same(last_state_in(folder), made)
        assert len(names_in(folder)) == last  # nothing half-written
        moment += 1
    assert moment > 8, done


def last_state_in(folder):
    return read_checkpoint(last_checkpoint(folder)[0])


@given(share=st.floats(0, 1, exclude_max=True), name=st.sampled_from([STATE, MANIFEST]))
@settings(max_examples=40)
def test_a_file_that_was_cut_off_is_told_and_the_checkpoint_before_is_used(
    share, name, tmp_path_factory
):
    folder = tmp_path_factory.mktemp("checkpoints")
    for version in (1, 2):
        write_checkpoint(folder, state_of(version), position_of(version))
    file = folder / "v0002" / name
    content = file.read_bytes()
    file.write_bytes(content[: int(share * len(content))])
    found, (complaint,) = last_checkpoint(folder)
    assert found == folder / "v0001"
    assert str(complaint).startswith(f"checkpoint {folder / 'v0002'} is damaged: ")
    assert "\n" not in str(complaint)
    with pytest.raises(DamagedError):
        read_checkpoint(folder / "v0002")


@given(data=st.data(), name=st.sampled_from([STATE, MANIFEST, MANIFEST_SUM]))
@settings(max_examples=100)
def test_one_flipped_bit_is_noticed(data, name, tmp_path_factory):
    path = write_checkpoint(tmp_path_factory.mktemp("flipped"), state_of(1), position_of(1))
    content = bytearray((path / name).read_bytes())
    bit = data.draw(st.integers(0, 8 * len(content) - 1))
    content[bit // 8] ^= 1 << bit % 8
    (path / name).write_bytes(content)
    with pytest.raises(DamagedError):
        read_checkpoint(path)


def test_a_checkpoint_that_is_known_to_be_damaged_is_passed_over(tmp_path):
    paths = [write_checkpoint(tmp_path, state_of(v), position_of(v)) for v in (1, 2)]
    assert last_checkpoint(tmp_path, {paths[1]}) == (paths[0], [])
    assert last_checkpoint(tmp_path, set(paths)) == (None, [])


@pytest.mark.parametrize("part", ["weights", "exp_avg", "exp_avg_sq", "ema", "old"])
def test_a_changed_number_is_noticed(tmp_path, part):
    state = state_of(1, old=True)
    path = write_checkpoint(tmp_path, state, position_of(1))
    number = getattr(state, part)["a number"].tobytes()
    content = (path / STATE).read_bytes()
    assert content.count(number) == 1
    (path / STATE).write_bytes(content.replace(number, np.float32(3.5).tobytes()))
    with pytest.raises(DamagedError, match=f"the content of {part} does not have"):
        read_checkpoint(path)


def test_a_checkpoint_of_another_format_is_refused_by_its_number(tmp_path):
    path = write_checkpoint(tmp_path, state_of(1), position_of(1))
    content = (path / MANIFEST).read_bytes().replace(b'  "format": 2,\n', b"")  # as 0.1.0 wrote it
    (path / MANIFEST).write_bytes(content)
    (path / MANIFEST_SUM).write_text(sum_of(content), encoding="utf-8")
    message = f"checkpoint {path} has format 1, but this digen reads 2: it was written by another"
    with pytest.raises(DamagedError, match=re.escape(message)):
        last_checkpoint(tmp_path)


def test_when_all_are_damaged_there_is_no_silent_new_start(tmp_path):
    path = write_checkpoint(tmp_path, state_of(1), position_of(1))
    (path / STATE).unlink()
    with pytest.raises(DamagedError, match=r"v0001 is damaged: .*"):
        last_checkpoint(tmp_path)
    with pytest.raises(FileNotFoundError, match="no checkpoint"):
        last_state(tmp_path)


def test_where_a_link_leads_nowhere_there_is_no_silent_new_start(tmp_path):
    """As where the disk that checkpoints were moved to is not mounted."""
    (tmp_path / "v0001").symlink_to(tmp_path / "gone")
    with pytest.raises(DamagedError, match=f"checkpoint {tmp_path / 'v0001'} is damaged"):
        last_checkpoint(tmp_path)
    (tmp_path / "checkpoints").symlink_to(tmp_path / "gone")
    with pytest.raises(UserError, match=r"checkpoints leads to .*/gone, which is not there"):
        last_checkpoint(tmp_path / "checkpoints")
    assert_same(
        read_checkpoint(write_checkpoint(tmp_path, state_of(1), position_of(1))), state_of(1)
    )


def test_where_the_folder_cannot_be_read_there_is_no_silent_new_start(tmp_path, monkeypatch):
    def stale(path):
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), path)

    for name in ("listdir", "scandir"):
        monkeypatch.setattr(os, name, stale)
    with pytest.raises(UserError, match=f"cannot read {tmp_path}: {os.strerror(errno.ESTALE)}"):
        last_checkpoint(tmp_path)


def test_no_folder_holds_no_checkpoint(tmp_path):
    assert last_checkpoint(tmp_path / "none") == (None, [])
