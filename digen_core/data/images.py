"""Images that prompts come with, checked before a run: sources, and samples to be trained on.

Sources are of prompts of edits, and of videos from images.

A row names a file, seen from the folder of the prompts, or holds the image itself: bytes, as
Parquet and Hugging Face's datasets have them, or a data URL, as JSON can hold it.
"""

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from io import BytesIO
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from digen_core.config.families import FAMILIES
from digen_core.config.model import ModelConfig
from digen_core.data.rows import Row
from digen_core.errors import ConfigError, UserError
from digen_core.inputs.reading import MIB, read_bytes, shown

MAX_IMAGE_BYTES: Final = 32 * MIB
MAX_PIXELS: Final = 2**26
"""Of a source image; the models are shown some 2**20 of them."""
FORMATS: Final = ("JPEG", "PNG", "WEBP")

_WHAT: Final = "the image"
_DATA_URL: Final = "data:image/"

_kinds: dict[str, str] = {}  # of images that were found to be whole, by digest


@dataclass(frozen=True, slots=True)
class SourceImage:
    """The image that a prompt comes with.

    It is read when it is needed, so that any number of files can be named; sent to another process
    it takes its content along, as that may be on a machine without the file.
    """

    digest: str
    """16 hex digits of its content, by which it is told from others."""

    kind: str = field(default="png", compare=False)
    """What the name of its file ends with: png, jpeg or webp."""

    name: str = field(default="", compare=False)
    """What errors call it: its path, or the row that holds it."""

    path: Path | None = field(default=None, compare=False)
    data: bytes | None = field(default=None, compare=False, repr=False)

    @classmethod
    def of(cls, data: bytes, name: str = "") -> "SourceImage":
        """Return the image of a file's content.

        Raises:
            ValueError: it is no whole image, or one that is not taken.
        """
        digest = _digest(data)
        return cls(digest, _kind_of(data, digest), name, data=data)

    def __reduce__(self) -> tuple[Any, ...]:
        return SourceImage, (self.digest, self.kind, self.name, None, self.content())

    def content(self) -> bytes:
        """Return the content of its file.

        Raises:
            UserError: the file is gone, or another one than when the run began.
        """
        if self.data is not None:
            return self.data
        assert self.path is not None, "it has one of the two"
        content = read_bytes(self.path, _WHAT, MAX_IMAGE_BYTES)
        if _digest(content) != self.digest:
            raise UserError(f"the image {self.name} has changed since the run began")
        return content

    def pixels(self, height: int, width: int) -> NDArray[np.uint8]:
        """Return it as [H, W, 3]: so large that it covers that size, and cut at the edges.

        Raises:
            UserError: the file is gone, or another one than when the run began.
        """
        try:
            whole = _decoded(self.content())[0]
        except ValueError as error:
            raise UserError(f"the image {self.name}: {error}") from error
        return np.asarray(ImageOps.fit(whole, (width, height), Image.Resampling.LANCZOS))

    def shrunk(self, height: int, width: int) -> "SourceImage":
        """Return the same image with no more than what is shown of it in a size.

        Raises:
            UserError: as `pixels`.
        """
        return _shrunk(self, height, width)


def source_images(
    row: Row, column: str, folder: Path, model: ModelConfig
) -> tuple[SourceImage, ...]:
    """Return the images of a row, one at least.

    Args:
        row: of prompts.
        column: of the images: one, or a list of them.
        folder: from which paths are seen.
        model: that is shown them.

    Raises:
        ConfigError: it has none, more than the model is shown, or one that is not taken; the
            message names row and column.
    """
    value = row.values.get(column)
    if not (isinstance(value, list) and value):
        return (_image(row, column, value, folder, "source image"),)
    if len(value) > model.max_source_images:
        what = f"model.family {model.family!r} is shown one; give one, or use a model of several"
        if FAMILIES[model.family].shown_several:
            what = (
                f"model.max_source_images is {model.max_source_images}; set it to the most that a "
                f"row has, of {FAMILIES[model.family].most_images} at most"
            )
        raise ConfigError(f"{row.origin} has {len(value)} source images in {column!r}, but {what}")
    return tuple(_image(row, column, own, folder, "source image") for own in value)


def given_images(row: Row, columns: Sequence[str], folder: Path) -> tuple[SourceImage, ...]:
    """Return the images that are a row's samples, one of each column.

    Args:
        row: of prompts.
        columns: of the images.
        folder: from which paths are seen.

    Raises:
        ConfigError: one is not there, or not taken; the message names row and column.
    """
    return tuple(_image(row, own, row.values.get(own), folder, "sample") for own in columns)


def _image(row: Row, column: str, value: object, folder: Path, what: str) -> SourceImage:
    if isinstance(value, dict) and {*value} <= {"bytes", "path"}:  # an Image of datasets
        value = value.get("bytes") or value.get("path")
    try:
        if isinstance(value, str) and value and not value.startswith(_DATA_URL):
            return _of_file(folder / value)
        return SourceImage.of(_content_of(value), f"of {row.origin}")
    except (UserError, ValueError) as error:
        raise ConfigError(
            f"{row.origin} has no {what}: its {column!r} is {shown(value)} ({error}); give "
            f"the path of a {', '.join(FORMATS[:-1])} or {FORMATS[-1]} file, seen from {folder}, "
            "or its content, in text as data:image/png;base64,..."
        ) from error


def _of_file(path: Path) -> SourceImage:
    try:
        found = path.stat()
        digest, kind = _of_version(path, found.st_mtime_ns, found.st_size)
    except OSError:
        read_bytes(path, _WHAT, MAX_IMAGE_BYTES)  # which says what is wrong
        raise
    return SourceImage(digest, kind, str(path), path)


@lru_cache(maxsize=2**20)
def _of_version(path: Path, mtime: int, size: int) -> tuple[str, str]:
    """Return digest and kind of a file; prompts are read several times, their images once."""
    content = read_bytes(path, _WHAT, MAX_IMAGE_BYTES)
    digest = _digest(content)
    return digest, _kind_of(content, digest)


def _content_of(value: object) -> bytes:
    if isinstance(value, bytes):
        if len(value) > MAX_IMAGE_BYTES:
            raise ValueError(f"it has {len(value)} bytes, more than {MAX_IMAGE_BYTES}")
        return value
    if not isinstance(value, str) or not value:
        raise ValueError("it is neither a path nor the content of a file")
    head, _, text = value.partition(",")
    if not head.endswith(";base64"):
        raise ValueError("a data URL has to be in base64")
    return base64.b64decode(text, validate=True)


def _kind_of(content: bytes, digest: str) -> str:
    """Return what an image's file is, having decoded it once in this process."""
    if digest not in _kinds:
        _kinds[digest] = _decoded(content)[1]
    return _kinds[digest]


def _decoded(content: bytes) -> tuple[Image.Image, str]:
    """Return an image upright and in three colours, what is transparent white, and its kind.

    Raises:
        ValueError: it is no whole image, or one that is not taken.
    """
    try:
        with Image.open(BytesIO(content), formats=FORMATS) as image:
            if image.width * image.height > MAX_PIXELS:
                size = f"{image.width} x {image.height}"
                raise ValueError(f"it has {size} pixels; use at most {MAX_PIXELS} of them")
            if image.mode.startswith(("I", "F")):
                raise ValueError("it has more than 8 bits in a channel; save it with 8")
            kind = "jpeg" if image.format == "MPO" else str(image.format).lower()
            return _in_three_colours(ImageOps.exif_transpose(image)), kind
    except UnidentifiedImageError:
        raise ValueError("it is no image of a known format") from None
    except ValueError:
        raise
    except Exception as error:  # Pillow raises whatever a damaged file leads to
        raise ValueError(f"it is damaged: {error}") from error


def _in_three_colours(image: Image.Image) -> Image.Image:
    if not image.has_transparency_data:
        return image.convert("RGB")
    colours = image.convert("RGBA")
    white = Image.new("RGBA", colours.size, "white")
    return Image.alpha_composite(white, colours).convert("RGB")


@lru_cache(maxsize=64)
def _shrunk(image: SourceImage, height: int, width: int) -> SourceImage:
    file = BytesIO()
    Image.fromarray(image.pixels(height, width)).save(file, "PNG", compress_level=1)
    return SourceImage(image.digest, "png", image.name, data=file.getvalue())


def _digest(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=8).hexdigest()
