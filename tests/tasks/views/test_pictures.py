"""Thumbnails travel on a receipt, so whatever they show they are small."""

from io import BytesIO

import numpy as np
import pytest
from PIL import Image

from digen_core.records import SHOWN_SAMPLES
from tasks.receipts import MAX_RECEIPT_BYTES, Scored, attach
from tasks.views.pictures import MAX_CELL_PIXELS, THUMBNAIL_BYTES, thumbnail


def noise(height: int, width: int, levels: int = 256) -> np.ndarray:
    """Pixels [H, W, 3] that no codec makes small."""
    values = np.random.default_rng(0).integers(0, levels, (height, width, 3))
    return (values * (255 // (levels - 1))).astype(np.uint8)


@pytest.mark.parametrize("shape", [(512, 512), (192, 192), (480, 832), (32, 48), (16, 8192)])
@pytest.mark.parametrize("levels", [2, 256])
def test_noise_takes_no_more_than_its_bytes(shape, levels):
    small = thumbnail(noise(*shape, levels))
    assert len(small) <= THUMBNAIL_BYTES
    assert max(Image.open(BytesIO(small)).size) <= MAX_CELL_PIXELS


def test_what_shows_little_keeps_its_quality():
    plain = np.zeros((512, 512, 3), dtype=np.uint8)
    plain[128:384, 128:384] = 255
    found = np.asarray(Image.open(BytesIO(thumbnail(plain)))).astype(int)
    assert np.abs(found[:40] - 0).max() <= 4
    assert np.abs(found[64:128, 64:128] - 255).max() <= 4


def test_the_receipt_of_a_fragment_takes_all_that_are_shown():
    """Four samples of 512 x 512 pixels of noise ended a run on a GPU: 71,639 bytes of 65,536."""
    facts = Scored({"reward": [0.5] * 64}, pictures=[thumbnail(noise(512, 512, 2))] * SHOWN_SAMPLES)
    attach(facts)
    assert SHOWN_SAMPLES * THUMBNAIL_BYTES < MAX_RECEIPT_BYTES / 4
