"""Pictures of samples: grids with their prompts, animations of videos, and small ones."""

from collections.abc import Sequence
from io import BytesIO
from typing import Any, Final

import numpy as np
from PIL import Image, ImageDraw

from tasks.views.labels import font_of, wrapped

FRAME_MS: Final = 120  # of an animation
CELL_PIXELS: Final = 96
"""Smaller images are enlarged to this, or a little less, by a whole factor."""
MAX_CELL_PIXELS: Final = 192
"""Larger images are shrunk to this."""
LABEL_PIXELS: Final = 184
THUMBNAIL_BYTES: Final = 12_288  # it travels on a receipt, and in pages' text
QUALITIES: Final = (85, 70, 50, 30, 10)  # of JPEG; the last one suffices for noise
GAP_PIXELS: Final = 6
LINE_PIXELS: Final = 17


def draw_grid(title: str, prompts: Sequence[str], images: np.ndarray) -> Image.Image:
    """Return images in a grid, one row per prompt, with the prompt at the left.

    Args:
        title: line at the top.
        prompts: n labels.
        images: [n, k, H, W, 3] uint8.

    Raises:
        ValueError: the images are of another shape or type.
    """
    if images.ndim != 5 or images.shape[-1] != 3 or images.dtype != np.uint8:
        raise ValueError(f"images are {images.dtype} {images.shape}; need uint8 [n, k, H, W, 3].")
    if len(prompts) != len(images):
        raise ValueError(f"{len(prompts)} prompts label {len(images)} rows of images.")
    rows, columns = images.shape[:2]
    cells = [[_cell(image) for image in row] for row in images]
    across, down = (pixels + GAP_PIXELS for pixels in cells[0][0].size)
    top = LINE_PIXELS + 2 * GAP_PIXELS
    grid = Image.new("RGB", (LABEL_PIXELS + columns * across, top + rows * down), "white")
    draw = ImageDraw.Draw(grid)
    draw.text((GAP_PIXELS, GAP_PIXELS), title, fill="black", font=font_of(title))
    for row, prompt in enumerate(prompts):
        font = font_of(prompt)
        label = wrapped(prompt, font, LABEL_PIXELS - 2 * GAP_PIXELS, max(1, down // LINE_PIXELS))
        draw.text((GAP_PIXELS, top + row * down), label, fill="black", font=font)
        for column, cell in enumerate(cells[row]):
            grid.paste(cell, (LABEL_PIXELS + column * across, top + row * down))
    return grid


def thumbnail(image: np.ndarray) -> bytes:
    """Return an image [H, W, 3] uint8 in the size of a grid's cell, as JPEG.

    It takes no more than `THUMBNAIL_BYTES`, whatever it shows: the more detail, the less quality.
    """
    cell = _cell(image)
    for quality in QUALITIES:
        saved = _saved(cell, "JPEG", quality=quality)
        if len(saved) <= THUMBNAIL_BYTES:
            break
    return saved


def animation(frames: Sequence[Image.Image]) -> bytes:
    """Return pictures, shown one after the other for ever, as GIF."""
    first, *others = frames
    settings = {"save_all": True, "append_images": others, "duration": FRAME_MS, "loop": 0}
    return _saved(first, "GIF", **settings)


def png(picture: Image.Image) -> bytes:
    """Return a picture as PNG."""
    return _saved(picture, "PNG")


def _saved(picture: Image.Image, kind: str, **settings: Any) -> bytes:
    stream = BytesIO()
    picture.save(stream, kind, **settings)
    return stream.getvalue()


def _cell(image: np.ndarray) -> Image.Image:
    height, width, _ = image.shape
    side = max(height, width)
    if side > MAX_CELL_PIXELS:
        scale, resampling = MAX_CELL_PIXELS / side, Image.Resampling.LANCZOS
    else:
        scale, resampling = max(1, CELL_PIXELS // side), Image.Resampling.NEAREST
    size = (max(1, round(width * scale)), max(1, round(height * scale)))
    return Image.fromarray(image).resize(size, resampling)
