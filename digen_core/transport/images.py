"""Decoded samples, and what they are edits of, on disk, beside the rows that name them.

| RUN/images/iteration-000003/g00-s05.png    sample 5 of group 0; a video is an animation
| RUN/sources/1f0c6a2b9d3e4f58.jpeg          a source image, by its content
"""

from collections.abc import Collection
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from digen_core.data.images import SourceImage
from digen_core.transport.files import make_folder, replace_bytes, written_whole

IMAGES_OF_RUN: Final = "images"
SOURCES_OF_RUN: Final = "sources"
MILLISECONDS_PER_FRAME: Final = 125

Format = Literal["png", "webp"]


def name_of(iteration: int, group: int, sample: int, suffix: Format) -> str:
    """Return a sample's file, seen from the run's folder."""
    return f"{IMAGES_OF_RUN}/iteration-{iteration:06d}/g{group:02d}-s{sample:02d}.{suffix}"


def write_image(path: Path, pixels: NDArray[np.uint8]) -> None:
    """Write an image [H, W, 3] or a video [F, H, W, 3] without loss, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    frames = [Image.fromarray(frame) for frame in (pixels if pixels.ndim == 4 else pixels[None])]
    options: dict[str, Any] = {"compress_level": 1}
    if path.suffix == ".webp":
        options = {"lossless": True}
    if len(frames) > 1:
        options |= {"save_all": True, "append_images": frames[1:], "loop": 0}
        options["duration"] = MILLISECONDS_PER_FRAME
    with written_whole(path, durable=False) as unfinished:
        frames[0].save(unfinished, format=path.suffix[1:].upper(), **options)


def keep_source(run_dir: Path, image: SourceImage) -> str:
    """Have a source image on disk, as it is, and return its file, seen from the run's folder."""
    name = f"{SOURCES_OF_RUN}/{image.digest}.{image.kind}"
    if not (run_dir / name).exists():
        make_folder(run_dir / SOURCES_OF_RUN)
        replace_bytes(run_dir / name, image.content())
    return name


def prune_images(run_dir: Path, iteration: int, names: Collection[str]) -> None:
    """Remove the images of an iteration that no row names."""
    folder = run_dir / IMAGES_OF_RUN / f"iteration-{iteration:06d}"
    for path in folder.glob("*"):
        if path.relative_to(run_dir).as_posix() not in names:
            path.unlink(missing_ok=True)
