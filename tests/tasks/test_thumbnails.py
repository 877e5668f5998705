"""What an evaluation shows of its images and videos."""

import numpy as np
import torch

from digen_core.data.prompts import Prompt
from flows.evaluate import with_sources
from support.edits import source
from tasks.evaluate import (
    SHOWN_FRAMES,
    SHOWN_PER_PROMPT,
    SHOWN_VIDEOS,
    THUMBNAIL_PIXELS,
    _thumbnails,
)


def test_images_become_bytes_channels_last():
    images = torch.rand(3, 10, 3, 16, 24)
    shown = _thumbnails(images, 2)
    assert shown.shape == (2, SHOWN_PER_PROMPT, 16, 24, 3)
    assert shown.dtype == np.uint8
    expected = (images[1, 4].permute(1, 2, 0) * 255).round().byte().numpy()
    np.testing.assert_array_equal(shown[1, 4], expected)


def test_sources_stand_before_samples_and_what_is_missing_is_white():
    prompts = [Prompt("a", images=(source(0), source(1))), Prompt("b", images=(source(2),))]
    pictures = np.zeros((2, 3, 16, 24, 3), np.uint8)
    found = with_sources(prompts, pictures)
    assert found.shape == (2, 5, 16, 24, 3)
    expected = [[own.pixels(16, 24) for own in prompt.images] for prompt in prompts]
    np.testing.assert_array_equal(found[0, :2], expected[0])
    np.testing.assert_array_equal(found[1, 0], expected[1][0])
    assert (found[1, 1] == 255).all()
    assert not found[:, 2:].any()
    videos = np.zeros((2, 3, 4, 16, 24, 3), np.uint8)
    np.testing.assert_array_equal(with_sources(prompts, videos)[1, 0, 3], expected[1][0])
    assert with_sources([Prompt("a")] * 2, pictures).shape == pictures.shape


def test_large_images_are_shrunk():
    assert _thumbnails(torch.rand(1, 1, 3, 256, 512), 1).shape == (1, 1, 64, 128, 3)
    assert _thumbnails(torch.rand(1, 1, 3, 32, 8192), 1).shape == (1, 1, 1, 128, 3)
    assert THUMBNAIL_PIXELS == 128


def test_a_video_is_shown_by_some_of_its_frames():
    videos = torch.rand(2, 6, 33, 3, 16, 24)
    shown = _thumbnails(videos, 2)
    assert shown.shape == (2, SHOWN_VIDEOS, SHOWN_FRAMES, 16, 24, 3)
    for frame, index in ((0, 0), (-1, 32), (5, 11)):
        expected = _thumbnails(videos[:, :, index], 2)[:, :SHOWN_VIDEOS]
        np.testing.assert_array_equal(shown[:, :, frame], expected)
    assert _thumbnails(videos[:, :, :5, :, :, :], 0).shape == (0, SHOWN_VIDEOS, 5, 16, 24, 3)
    assert _thumbnails(torch.rand(1, 1, 2, 3, 256, 512), 1).shape == (1, 1, 2, 64, 128, 3)
