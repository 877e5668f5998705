"""The size of a sample, and which there may be. Importing this module must not import torch."""

from collections.abc import Sequence
from math import ceil
from typing import Final

from digen_core.config.families import FAMILIES, VIDEO_FAMILIES, FamilyName
from digen_core.strict import AtMost

Size = tuple[int, int, int]
"""Height and width in pixels, and frames."""

MAX_SAMPLE_TOKENS: Final = 2**17
"""Of a sample; 129 frames of 720 x 1280 pixels are 118,800."""

SIDE: Final = AtMost(8192, "no family makes images of so many pixels")
FRAMES: Final = AtMost(1025, "no family makes videos of so many frames")


def tokens_of(size: Size) -> int:
    """Return about how many tokens a transformer makes of a sample: 16 x 16 pixels and 4 frames."""
    height, width, frames = size
    return ceil(height / 16) * ceil(width / 16) * ((frames - 1) // 4 + 1)


def check_tokens(name: str, size: Size) -> None:
    """Raise ValueError if samples of a size are too large."""
    if (number := tokens_of(size)) > MAX_SAMPLE_TOKENS:
        raise ValueError(
            f"{name} {'are' if 'and' in name else 'is'} {list(size)}, a sample of {number} "
            f"tokens; use at most {MAX_SAMPLE_TOKENS}: the families' longest videos have "
            "118800, and every sample is held in memory."
        )


def check_frames(name: str, frames: int, family: FamilyName) -> None:
    """Raise ValueError if a family makes no videos of so many frames."""
    if frames > 1 and family not in VIDEO_FAMILIES:
        raise ValueError(
            f"{name} is {frames}, but {family} makes images; use 1, or "
            f"a video family ({', '.join(VIDEO_FAMILIES)})."
        )
    if (frames - 1) % 4:  # a tiny model of a family may have fewer to a latent one than usual
        usual = FAMILIES[family].usual_frames
        raise ValueError(
            f"{name} is {frames}; video models take 1 + a multiple of 4"
            f"{f' ({family}: of {usual})' if usual != 4 else ''}: "
            f"use {max(frames - (frames - 1) % usual, 1 + usual)}."
        )


def check_sizes(sizes: Sequence[Size], family: FamilyName) -> None:
    """Raise ValueError if one of several sizes of a family's samples is none that there may be."""
    for place, (height, width, frames) in enumerate(sizes):
        if min(height, width) < 8 or frames < 1:
            raise ValueError(
                f"model.sizes[{place}] is {[height, width, frames]}; needs height and width "
                "of at least 8 pixels and at least one frame."
            )
        check_frames(f"the number of frames of model.sizes[{place}]", frames, family)
        check_tokens(f"model.sizes[{place}]", (height, width, frames))
