"""Source images: what prompts come with whose samples are edits, checked before a run starts.

A row names a file, seen from the folder of the prompts, or holds the image itself: bytes, as
Parquet and Hugging Face's datasets have them, or a data URL, as JSON can hold it.
"""

import base64
import hashlib
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from digen_core.data.rows import Row
from digen_core.errors import ConfigError, UserError
from digen_core.inputs.reading import MIB, read_bytes, shown

MAX_IMAGE_BYTES: Final = 32 * MIB
MAX_PIXELS: Final = 2**26
"""Of a source image; the models are shown some 2**20 of them."""
FORMATS: Final = ("JPEG", "PNG", "WEBP")

_WHAT: Final = "the source image"
_DATA_URL: Final = "data:image/"


@dataclass(frozen=True, slots=True)
class SourceImage:
    """The image that a prompt comes with.

    It is read when it is needed, so that any number of files can be named; sent to another process
    it takes its content along, as that may be on a machine without the file.
    """

    digest: str
    """16 hex digits of its content, by which it is told from others."""

    path: Path | None = field(default=None, compare=False)
    data: bytes | None = field(default=None, compare=False, repr=False)

    @classmethod
    def of(cls, data: bytes) -> "SourceImage":
        """Return the image of a file's content."""
        return cls(_digest(data), data=data)

    def __reduce__(self) -> tuple[Any, ...]:
        return SourceImage.of, (self.content(),)

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
            raise UserError(f"the source image {self.path} has changed since the run began")
        return content

    @property
    def suffix(self) -> str:
        """What the name of its file ends with: png, jpeg or webp."""
        with Image.open(BytesIO(self.content())) as image:
            return str(image.format).lower()

    def pixels(self, height: int, width: int) -> NDArray[np.uint8]:
        """Return it as [H, W, 3]: so large that it covers that size, and cut at the edges.

        Raises:
            UserError: the file is gone, changed or damaged.
        """
        try:
            with Image.open(BytesIO(self.content()), formats=FORMATS) as image:
                upright = ImageOps.exif_transpose(image).convert("RGB")
        except (OSError, ValueError, SyntaxError) as error:
            where = self.path or "of a row"
            raise UserError(f"the source image {where} is damaged: {error}") from error
        return np.asarray(ImageOps.fit(upright, (width, height), Image.Resampling.LANCZOS))


def source_image(row: Row, column: str, folder: Path) -> SourceImage:
    """Return the image of a row.

    Args:
        row: of prompts.
        column: of the images.
        folder: from which paths are seen.

    Raises:
        ConfigError: it has none, or one that cannot be read; the message names row and column.
    """
    value = row.values.get(column)
    if isinstance(value, dict) and {*value} <= {"bytes", "path"}:  # an Image of datasets
        value = value.get("bytes") or value.get("path")
    try:
        if isinstance(value, str) and value and not value.startswith(_DATA_URL):
            path = folder / value
            content = read_bytes(path, _WHAT, MAX_IMAGE_BYTES)
            _check(content)
            return SourceImage(_digest(content), path=path)
        content = _content_of(value)
        _check(content)
    except (UserError, ValueError) as error:
        raise ConfigError(
            f"{row.origin} has no source image: its {column!r} is {shown(value)} ({error}); give "
            f"the path of a {', '.join(FORMATS[:-1])} or {FORMATS[-1]} file, seen from {folder}, "
            "or its content, in text as data:image/png;base64,..."
        ) from error
    return SourceImage.of(content)


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


def _check(content: bytes) -> None:
    """Raise ValueError if a file's content is no whole image, or one of too many pixels."""
    try:
        with Image.open(BytesIO(content), formats=FORMATS) as image:
            if image.width * image.height > MAX_PIXELS:
                size = f"{image.width} x {image.height}"
                raise ValueError(f"it has {size} pixels; use at most {MAX_PIXELS} of them")
            image.verify()
    except UnidentifiedImageError:
        raise ValueError("it is no image of a known format") from None
    except (OSError, SyntaxError, Image.DecompressionBombError) as error:
        raise ValueError(f"it is damaged: {error}") from error


def _digest(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=8).hexdigest()
