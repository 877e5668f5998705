"""Inputs of what became NaN: kept as they were, not too many, and told where they are damaged."""

from dataclasses import replace

import numpy as np
import pytest

from digen_core.errors import UserError
from digen_core.transport.kept_inputs import (
    MOST_KEPT,
    NONFINITE_OF_RUN,
    KeptInput,
    keep_input,
    read_inputs,
)

LATENTS = np.arange(6, dtype=np.float32).reshape(2, 3)
KEPT = KeptInput(
    "g00-f1-denoise", "denoise", "latent", 3, 0, 7, {"steps": [0, 1]}, {"latents": LATENTS}
)


def test_what_is_kept_is_read_again_by_iteration(tmp_path):
    other = replace(KEPT, name="p007-train-0", kind="train", arrays={"x": LATENTS.T, "y": LATENTS})
    keep_input(tmp_path, KEPT)
    keep_input(tmp_path, other)
    keep_input(tmp_path, replace(KEPT, iteration=4))
    for found, kept in zip(read_inputs(tmp_path, 3), (KEPT, other), strict=True):
        assert replace(found, arrays={}) == replace(kept, arrays={})
        assert found.arrays.keys() == kept.arrays.keys()
        for name, array in kept.arrays.items():
            np.testing.assert_array_equal(found.arrays[name], array)


def test_who_may_read_the_folder_may_read_what_is_kept(tmp_path):
    keep_input(tmp_path, KEPT)
    (file,) = (tmp_path / NONFINITE_OF_RUN).iterdir()
    (usual := file.with_name("as usual")).touch()
    assert file.stat().st_mode == usual.stat().st_mode


def test_only_the_first_are_kept(tmp_path):
    for number in range(MOST_KEPT + 2):
        keep_input(tmp_path, replace(KEPT, name=f"p{number:03d}-train-0"))
    assert [own.name for own in read_inputs(tmp_path, 3)] == [
        f"p{number:03d}-train-0" for number in range(MOST_KEPT)
    ]


def test_what_cannot_be_kept_is_logged(tmp_path, caplog):
    (tmp_path / NONFINITE_OF_RUN).touch()  # where the folder should be
    keep_input(tmp_path, KEPT)
    assert "the input of what is NaN or infinite cannot be kept: " in caplog.text


def test_an_iteration_of_which_nothing_is_kept_is_said_with_those_that_are(tmp_path):
    with pytest.raises(UserError, match=r"nothing of iteration 2 that .*, nor of any other$"):
        read_inputs(tmp_path, 1)
    for iteration in (8, 3):
        keep_input(tmp_path, replace(KEPT, iteration=iteration))
    with pytest.raises(UserError, match=r"nothing of iteration 2 that .*, only of 4, 9$"):
        read_inputs(tmp_path, 1)


def test_a_file_that_is_damaged_is_said(tmp_path):
    keep_input(tmp_path, KEPT)
    (path,) = (tmp_path / NONFINITE_OF_RUN).iterdir()
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(UserError, match=r"i000003-g00-f1-denoise.safetensors is damaged: "):
        read_inputs(tmp_path, 3)
