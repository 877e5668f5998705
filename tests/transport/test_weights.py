"""The weights of a version on disk: whole or not at all, and refused when damaged."""

import numpy as np
import pytest

from digen_core.transport import weights as weights_module
from digen_core.transport.weights import read_weights, write_weights

WEIGHTS = {"block.0.to_q.lora_A.default.weight": np.arange(6.0).reshape(2, 3), "b": np.ones(4)}
EMA = {name: value - 0.25 for name, value in WEIGHTS.items()}


def assert_equal(got, expected):
    assert got.keys() == expected.keys()
    for name, value in got.items():
        np.testing.assert_array_equal(value, expected[name])
        assert value.dtype == expected[name].dtype


def test_a_version_comes_back_as_it_was(tmp_path):
    path = write_weights(tmp_path / "weights", 7, WEIGHTS, EMA)
    assert path.name == "v0007.safetensors"
    version, weights, ema = read_weights(tmp_path / "weights")
    assert version == 7
    assert_equal(weights, WEIGHTS)
    assert_equal(ema, EMA)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_arrays_of_any_layout_come_back(tmp_path, dtype):
    weights = {
        "transposed": np.arange(6, dtype=dtype).reshape(2, 3).T,
        "strided": np.arange(6, dtype=dtype)[::2],
        "a number": np.array(3, dtype=dtype),
    }
    write_weights(tmp_path, 1, weights, weights)  # the average may be the weights themselves
    _, back, ema = read_weights(tmp_path)
    assert_equal(back, weights)
    assert_equal(ema, weights)


def test_the_last_version_replaces_the_one_before(tmp_path):
    for version in (1, 2, 3):
        write_weights(tmp_path, version, {"a": np.full(2, version)}, {"a": np.zeros(2)})
    assert [path.name for path in tmp_path.iterdir()] == ["v0003.safetensors"]
    version, weights, _ = read_weights(tmp_path)
    assert (version, weights["a"].tolist()) == (3, [3, 3])


@pytest.mark.parametrize("version", [9, 99, 9_999])
def test_the_newer_of_two_versions_is_read(tmp_path, version):
    kept = write_weights(tmp_path, version, WEIGHTS, EMA)
    content = kept.read_bytes()
    write_weights(tmp_path, version + 1, EMA, EMA)
    kept.write_bytes(content)  # as if the process had ended before it could drop the older one
    assert read_weights(tmp_path)[0] == version + 1


def test_a_process_that_dies_while_it_writes_leaves_the_version_before(tmp_path, monkeypatch):
    write_weights(tmp_path, 1, WEIGHTS, EMA)

    def die(tensors, path, metadata):
        path.write_bytes(b"half")
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(weights_module, "save_file", die)
        with pytest.raises(KeyboardInterrupt):
            write_weights(tmp_path, 2, EMA, EMA)
    version, weights, _ = read_weights(tmp_path)
    assert version == 1
    assert_equal(weights, WEIGHTS)
    write_weights(tmp_path, 2, EMA, EMA)  # the step is done again
    assert [path.name for path in tmp_path.iterdir()] == ["v0002.safetensors"]


@pytest.mark.parametrize("value", ["weights", "ema"])
def test_a_damaged_file_is_refused(tmp_path, value):
    parts = {"weights": {"a": np.full(4, 1.5)}, "ema": {"a": np.full(4, 2.5)}}
    path = write_weights(tmp_path, 1, **parts)
    number = parts[value]["a"][:1].tobytes()
    content = path.read_bytes()
    assert number in content
    path.write_bytes(content.replace(number, np.array([3.5]).tobytes(), 1))
    with pytest.raises(ValueError, match=r"v0001.safetensors is damaged"):
        read_weights(tmp_path)


def test_a_file_that_was_cut_off_is_refused(tmp_path):
    path = write_weights(tmp_path, 1, WEIGHTS, EMA)
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(ValueError, match=r"v0001.safetensors is damaged"):
        read_weights(tmp_path)


def test_a_folder_without_weights_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError, match=f"no weights in {tmp_path}"):
        read_weights(tmp_path)
