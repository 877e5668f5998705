"""Images and trajectories beside the rows: they come back as they were, and old ones go."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageSequence
from safetensors.numpy import save_file

from digen_core.control.protocol import Fragment
from digen_core.errors import UserError
from digen_core.transport.arrays import to_stored
from digen_core.transport.images import name_of, prune_images, write_image
from digen_core.transport.origin import Origin
from digen_core.transport.segment import Segment
from digen_core.transport.trajectories import (
    folder_of,
    forget_trajectories,
    prune_trajectories,
    read_segments,
    write_segment,
)

FRAGMENT = Fragment(iteration=3, group=1, index=2, first_sample=4, num_samples=2)
STEPS = range(2, 6)  # of the segment


def segment_of(precision="float32", fragment=FRAGMENT) -> Segment:
    torch.manual_seed(0)
    latents = torch.randn(len(STEPS) + 1, 2, 3, 4)
    latents = latents.to(getattr(torch, precision)).float()  # as stored: rounded before
    logprobs = {step: np.array([step / 7, -step / 3], np.float32) for step in STEPS}
    sigmas = np.linspace(1, 0, 9, dtype=np.float32)
    return Segment(fragment, 2, to_stored(latents, precision), logprobs, 5, sigmas, "rollout-0")


@pytest.mark.parametrize("precision", ["float32", "float16", "bfloat16"])
def test_the_kept_part_of_a_segment_comes_back_bit_for_bit(precision, tmp_path):
    segment = segment_of(precision)
    write_segment(tmp_path, segment, steps=[0, 3, 4, 9])
    (found,) = read_segments(tmp_path, 3)
    assert (found.fragment, found.version, found.first_step) == (FRAGMENT, 5, 3)
    assert found.device == "rollout-0"
    assert [found.covers(step) for step in range(7)] == [False] * 3 + [True] * 2 + [False] * 2
    assert found.latents.dtype == segment.latents.dtype
    for step in (3, 4):
        np.testing.assert_array_equal(found.before(step), segment.before(step))
        np.testing.assert_array_equal(found.after(step), segment.after(step))
        np.testing.assert_array_equal(found.logprobs[step], segment.logprobs[step])
    assert found.logprobs.keys() == {3, 4}
    np.testing.assert_array_equal(found.sigmas, segment.sigmas)


def test_who_may_read_the_folder_may_read_a_segment(tmp_path):
    path = write_segment(tmp_path, segment_of(), STEPS)
    (usual := path.with_name("as usual")).touch()
    assert path.stat().st_mode == usual.stat().st_mode


@pytest.mark.parametrize("samples", [(0, 3), [0, 3], range(2, 4)])
def test_whose_noise_its_samples_have_is_kept(samples, tmp_path):
    origin = Origin((3, 7), samples)
    write_segment(tmp_path, replace(segment_of(), origin=origin), STEPS)
    (found,) = read_segments(tmp_path, 3)
    assert found.origin == Origin((3, 7), tuple(samples))


def test_a_segment_without_such_steps_is_not_kept(tmp_path):
    assert write_segment(tmp_path, segment_of(), steps=[0, 1, 6]) is None
    assert not list(tmp_path.rglob("*.safetensors"))


def test_a_damaged_file_is_one_line(tmp_path):
    path = write_segment(tmp_path, segment_of(), steps=STEPS)
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(UserError, match=r"t02\.safetensors is damaged"):
        read_segments(tmp_path, 3)


def test_a_file_that_says_nothing_of_itself_is_one_line(tmp_path):
    path = write_segment(tmp_path, segment_of(), steps=STEPS)
    for header in ("7", "null", '"text"', "[]", "{}"):
        save_file({"latents": np.zeros((2, 1), np.float32)}, path, {"digen": header})
        with pytest.raises(UserError, match=r"t02\.safetensors is damaged"):
            read_segments(tmp_path, 3)


def test_a_bit_that_flips_in_what_a_file_says_of_itself_is_one_line(tmp_path):
    path = write_segment(tmp_path, segment_of(), steps=STEPS)
    content, said = path.read_bytes(), list[str]()
    header = range(8, 8 + int.from_bytes(content[:8], "little"))
    for place in header[::3]:
        flipped = bytearray(content)
        flipped[place] ^= 1 << place % 7
        path.write_bytes(flipped)
        try:
            read_segments(tmp_path, 3)  # it may be another name of a device
        except UserError as error:
            said.append(str(error))
    assert len(said) > 0.9 * len(header[::3])
    assert all(text.startswith(f"{path} is damaged: ") for text in said)


def test_as_many_iterations_stay_as_are_to_be_kept(tmp_path):
    def kept():
        return [it for it in range(5) if folder_of(tmp_path, it).exists()]

    for iteration in range(5):
        fragment = Fragment(iteration, 0, 0, 0, 2)
        write_segment(tmp_path, segment_of(fragment=fragment), STEPS)
    prune_trajectories(tmp_path, 4, "all")
    assert kept() == [0, 1, 2, 3, 4]
    prune_trajectories(tmp_path, 3, 2)  # 4 is under way already
    assert kept() == [2, 3, 4]
    forget_trajectories(tmp_path, 3)
    assert kept() == [2, 4]


@pytest.mark.parametrize("suffix", ["png", "webp"])
@pytest.mark.parametrize("num_frames", [1, 3])
def test_an_image_or_a_video_is_kept_without_loss(suffix, num_frames, tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (num_frames, 8, 6, 3), dtype=np.uint8)
    path = tmp_path / name_of(0, 1, 2, suffix)
    write_image(path, pixels if num_frames > 1 else pixels[0])
    with Image.open(path) as image:
        frames = [np.asarray(frame.convert("RGB")) for frame in ImageSequence.Iterator(image)]
    np.testing.assert_array_equal(frames, pixels)


def test_images_that_no_row_names_go(tmp_path):
    names = [name_of(7, 0, sample, "png") for sample in range(3)]
    other = name_of(8, 0, 0, "png")
    for name in (*names, other):
        write_image(tmp_path / name, np.zeros((2, 2, 3), np.uint8))
    prune_images(tmp_path, 7, {names[1]})
    assert {p.relative_to(tmp_path).as_posix() for p in tmp_path.rglob("*.png")} == {
        names[1],
        other,
    }


def test_what_a_worker_that_was_given_up_writes_meanwhile_is_no_matter(tmp_path, monkeypatch):
    """Its unfinished file was seen, and has its own name or is gone when it is to be removed."""
    image = tmp_path / name_of(7, 0, 0, "png")
    write_image(image, np.zeros((2, 2, 3), np.uint8))
    seen = [image.with_name(f".{image.name}.123"), image]
    monkeypatch.setattr(Path, "glob", lambda folder, pattern: iter(seen))
    prune_images(tmp_path, 7, set())
    assert not image.exists()
