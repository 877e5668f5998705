"""Tiny pipelines that are shown a source image, and images to show them."""

from io import BytesIO
from pathlib import Path

import numpy as np
from diffusers import FluxKontextPipeline, FluxPipeline
from PIL import Image

from digen_core.data.images import SourceImage


def write_kontext(flux: str, folder: Path) -> str:
    """Write a tiny FLUX as a FLUX.1 Kontext; return its folder."""
    parts = FluxPipeline.from_pretrained(flux).components
    FluxKontextPipeline(**parts).save_pretrained(folder)
    return str(folder)


def picture(seed: int, width: int = 48, height: int = 32) -> bytes:
    """Return a PNG of smooth colours."""
    coarse = np.random.default_rng(seed).integers(0, 255, (3, 4, 3), dtype=np.uint8)
    image = Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)
    file = BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


def source(seed: int, width: int = 48, height: int = 32) -> SourceImage:
    """Return a picture as a source image."""
    return SourceImage.of(picture(seed, width, height))
