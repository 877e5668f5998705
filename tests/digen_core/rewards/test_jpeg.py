import numpy as np
import pytest
import torch
from PIL import Image

from digen_core.rewards.jpeg import jpeg_compressibility, jpeg_incompressibility
from digen_core.rewards.pixels import as_pixels

IMAGES = torch.rand(3, 3, 24, 40, generator=torch.Generator().manual_seed(0))
PROMPTS = ["a", "b", "c"]


def test_it_is_the_size_of_the_file_in_kilobytes(tmp_path):
    expected = []
    for index, image in enumerate(IMAGES):
        path = tmp_path / f"{index}.jpg"
        pixels = np.rint(image.numpy().transpose(1, 2, 0) * 255).astype(np.uint8)
        Image.fromarray(pixels).save(path, quality=95)
        expected.append(path.stat().st_size / 1000)
    got = jpeg_incompressibility(IMAGES, PROMPTS)
    np.testing.assert_array_equal(got, expected)
    np.testing.assert_array_equal(jpeg_compressibility(IMAGES, PROMPTS), -got)


def test_a_flat_image_is_smaller_than_noise_and_its_size_is_known():
    flat = torch.full((1, 3, 24, 40), 0.5)
    assert jpeg_incompressibility(flat, ["a"]) == pytest.approx(
        0.639, abs=0.02
    )  # nearly all header
    assert (jpeg_incompressibility(IMAGES, PROMPTS) > 1.0).all()


def test_pixels_are_rounded_and_cut():
    image = torch.tensor([-0.1, 0.0, 0.499 / 255, 0.501 / 255, 1.0, 1.3])
    pixels = as_pixels(image.view(1, 1, 6).expand(3, 1, 6))
    assert pixels.shape == (1, 6, 3)
    assert pixels[0, :, 1].tolist() == [0, 0, 0, 1, 255, 255]
    assert as_pixels(torch.zeros(2, 5, 3, 4, 6)).shape == (2, 5, 4, 6, 3)
