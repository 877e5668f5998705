"""A train state dealt over a gang: its members step, name, keep and read what one device does."""

import numpy as np
import pytest

from digen_core.checkpoints.tensors import (
    begin,
    read_checkpoint,
    write_checkpoint,
    write_rows,
)
from digen_core.gang.members import ALONE, Gang
from support import dealt_state
from support.checkpoints import names_in, position_of
from support.dealt_state import CONFIG, PARTS, assert_rows, dealt, steps, written
from support.gang_processes import run_gang

SIZES = [1, 2, 3, 4]


@pytest.mark.ci_but_one
@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("scale", [1e-3, 100.0], ids=["whole", "clipped"])
def test_members_step_their_rows(tmp_path, size, scale):
    alone = steps(ALONE, scale)
    assert (alone.grad_norm > CONFIG.max_grad_norm) == (scale > 1)
    for state, whole in run_gang(size, tmp_path, dealt_state.stepped, scale):
        assert state.grad_norm == pytest.approx(alone.grad_norm, rel=1e-12)
        assert state.lengths == alone.lengths
        for part in PARTS:
            for name, value in getattr(alone, part).items():
                np.testing.assert_allclose(whole[part][name], value, rtol=0, atol=1e-12)
        if scale < 1:  # nothing is rounded by the norm
            assert state.weights_hash == alone.weights_hash


@pytest.mark.parametrize("size", [2, 4])
def test_contents_are_those_of_the_whole(tmp_path, size):
    dtypes = ["float64", "float32", "float16", "int32"]
    expected = dealt_state.contents(dtypes)
    assert run_gang(size, tmp_path, dealt_state.contents, dtypes) == [expected] * size


@pytest.mark.parametrize("readers", SIZES)
def test_a_checkpoint_of_a_gang_is_read_by_gangs_of_any_size(tmp_path, readers):
    state, position = steps(ALONE, 1.0), position_of(3)
    paths = [written(tmp_path / str(size), size, state, position) for size in SIZES]
    assert names_in(paths[0]) == ["manifest.json", "manifest.sha256", "state.safetensors"]
    assert names_in(paths[2])[2:] == [f"state-0000{n}-of-00003.safetensors" for n in (1, 2, 3)]
    (tmp_path / "gang").mkdir()
    if readers == 1:
        found = [dealt_state.read(paths)]
    else:
        found = run_gang(readers, tmp_path / "gang", dealt_state.read, paths)
    for rank, states in enumerate(found):
        for own in states:
            assert_rows(own, state, Gang(rank, readers))


def test_hashes_do_not_depend_on_who_wrote(tmp_path):
    state, position = steps(ALONE, 1.0), position_of(3)
    manifests = {
        (written(tmp_path / str(size), size, state, position) / "manifest.json")
        .read_text()
        .replace(f'"num_files": {size}', "")
        for size in SIZES
    }
    manifests.add(
        (write_checkpoint(tmp_path / "one", state, position) / "manifest.json")
        .read_text()
        .replace('"num_files": 1', "")
    )
    assert len(manifests) == 1


@pytest.mark.parametrize("damage", ["a flipped bit", "a file is gone", "files are exchanged"])
def test_a_damaged_file_is_refused_by_all_members(tmp_path, damage):
    path = written(tmp_path / "c", 2, steps(ALONE, 1.0), position_of(3))
    first, second = sorted(path.glob("state-*"))
    match damage:
        case "a flipped bit":
            content = bytearray(second.read_bytes())
            content[-3] ^= 4
            second.write_bytes(content)
        case "a file is gone":
            second.unlink()
        case "files are exchanged":
            kept = first.read_bytes()
            first.write_bytes(second.read_bytes())
            second.write_bytes(kept)
    (tmp_path / "gang").mkdir()
    for why in run_gang(2, tmp_path / "gang", dealt_state.refused, path):
        assert why.startswith(f"DamagedError: checkpoint {path} is damaged: ")


def test_what_is_half_written_is_no_checkpoint(tmp_path):
    """A member that dies leaves a folder that the next attempt replaces."""
    state, position = steps(ALONE, 1.0), position_of(3)
    begin(tmp_path, 3)
    write_rows(tmp_path, dealt(state, Gang(0, 2)), Gang(0, 2))
    assert names_in(tmp_path) == [".v0003.unfinished"]
    path = written(tmp_path, 3, state, position)  # the gang is formed again, with one more
    assert names_in(tmp_path) == ["v0003"]
    assert_rows(read_checkpoint(path), state, ALONE)
