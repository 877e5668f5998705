"""The colours of objects, as CLIP sees them: of ten the nearest."""

from collections.abc import Sequence
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from digen_core.rewards.clip.clip import Clip
from digen_core.rewards.geneval.boxes import Box, Found
from digen_core.rewards.geneval.wanted import COLOURS

GREY: Final = 0x99
"""What surrounds an object that has a mask."""

_TEXTS: Final = ("a photo of a {colour} {name}", "a photo of a {colour}-colored {name}")
_ANY_OBJECT: Final = "a photo of a {colour} object"


class Colours:
    """Classifies objects by their colour, with three texts for each."""

    def __init__(self, clip: Clip) -> None:
        self._clip = clip
        self._known: dict[str, Tensor] = {}  # of each class [10, D]

    def __call__(self, pixels: NDArray[np.uint8], name: str, found: Sequence[Found]) -> list[str]:
        """Return the colours of objects of a class in an image [H, W, 3]."""
        crops = [cut_out(pixels, one) for one in found]
        nearest = (self._clip.embed_pixels(crops) @ self.embeddings(name).T).argmax(dim=-1)
        return [COLOURS[place] for place in nearest.tolist()]

    def embeddings(self, name: str) -> Tensor:
        """Return the directions [10, D] of the colours of a class: means over their texts."""
        if name not in self._known:
            texts = [
                text.format(colour=colour, name=name)
                for colour in COLOURS
                for text in (*_TEXTS, _ANY_OBJECT)
            ]
            means = self._clip.embed_texts(texts).unflatten(0, (len(COLOURS), -1)).mean(dim=1)
            self._known[name] = torch.nn.functional.normalize(means, dim=-1)
        return self._known[name]


def cut_out(pixels: NDArray[np.uint8], one: Found) -> NDArray[np.uint8]:
    """Return what is in an object's box; what is beside its mask, if it has one, is grey."""
    rows, columns = _within(one.box, pixels.shape[0], pixels.shape[1])
    cut = pixels[rows, columns]
    if one.mask is None:
        return cut
    grey = np.full_like(cut, GREY)
    return np.where(one.mask[rows, columns, None], cut, grey)


def _within(box: Box, height: int, width: int) -> tuple[slice, slice]:
    """Return the rows and columns of a box, at least one of each, inside of an image."""
    left, top = min(max(round(box[0]), 0), width - 1), min(max(round(box[1]), 0), height - 1)
    right, bottom = max(round(box[2]), left + 1), max(round(box[3]), top + 1)
    return slice(top, bottom), slice(left, right)
