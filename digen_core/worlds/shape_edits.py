"""Edits of the world ``shapes``: an image, and words that say what to change about one object.

Two kinds of words, which name the object by what it keeps:
    recolour   "make the circle red"            (there is one circle in the image)
    reshape    "make the red one a circle"      (there is one red object in it)

The rest of the image, and the object's place, stay as they are.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from io import BytesIO
from itertools import product
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from digen_core.worlds.shapes import COLORS, RELATIONS, SHAPES, Item, Scene, layout, paint

_SHARE_ALONE: Final = 0.5
"""Of the images that show the object to be changed and nothing else."""

Pixels = NDArray[np.uint8]


@dataclass(frozen=True, order=True)
class Edit:
    """What words ask for."""

    changes: Literal["color", "shape"]
    named: str  # the shape, or the colour, by which the object is told from others
    to: str  # the colour, or the shape, that it gets

    @property
    def text(self) -> str:
        """The words."""
        if self.changes == "color":
            return f"make the {self.named} {self.to}"
        return f"make the {self.named} one a {self.to}"

    def names(self, item: Item) -> bool:
        """Say whether an object is so called."""
        return self.named == (item.shape if self.changes == "color" else item.color)

    def applied(self, item: Item) -> Item:
        """Return what an object becomes."""
        return Item(self.to, item.shape) if self.changes == "color" else Item(item.color, self.to)


@dataclass(frozen=True, order=True)
class Change:
    """An edit of an object: what is asked for, and of what."""

    edit: Edit
    before: Item


def parse_edit(text: str) -> Edit:
    """Return the edit that words ask for.

    Raises:
        ValueError: they are outside the grammar of this world.
    """
    edit = {change.edit.text: change.edit for change in all_changes()}.get(text)
    if edit is None:
        raise ValueError(
            f"prompt {text!r} is no edit of the shapes world; it knows 'make the circle red' and "
            f"'make the red one a circle' with colours {', '.join(COLORS)} and shapes "
            f"{', '.join(SHAPES)}"
        )
    return edit


@cache
def all_changes() -> tuple[Change, ...]:
    """Return every edit of every object: 36 recolour and 24 reshape it."""
    found = []
    for color, shape in product(COLORS, SHAPES):
        item = Item(color, shape)
        found += [Change(Edit("color", shape, own), item) for own in COLORS if own != color]
        found += [Change(Edit("shape", color, own), item) for own in SHAPES if own != shape]
    return tuple(found)


@cache
def train_changes() -> tuple[Change, ...]:
    """Return the 45 changes for pretraining and post-training."""
    return tuple(change for change in all_changes() if not _is_held_out(change))


@cache
def evaluation_changes() -> tuple[Change, ...]:
    """Return the 15 changes that no training ever sees.

    Every colour, shape and wording is trained on in other combinations.
    """
    return tuple(change for change in all_changes() if _is_held_out(change))


def _is_held_out(change: Change) -> bool:
    colors, before, edit = list(COLORS), change.before, change.edit
    place = colors.index(before.color) + SHAPES.index(before.shape)
    target = (colors if edit.changes == "color" else list(SHAPES)).index(edit.to)
    if edit.changes == "color":
        return (target - colors.index(before.color)) % 4 == 1 + SHAPES.index(before.shape) % 3 and (
            place % 4 != 3
        )
    return (target - SHAPES.index(before.shape)) % 3 == 1 and place % 4 in (0, 2)


def draw_pair(change: Change, rng: np.random.Generator) -> tuple[Pixels, Pixels]:
    """Return a random image [32, 32, 3] with the object, and the same one edited."""
    items, place = [change.before], 0
    relation = None
    if rng.random() >= _SHARE_ALONE:
        others = [
            Item(color, shape)
            for color, shape in product(COLORS, SHAPES)
            if color != change.before.color and shape != change.before.shape
        ]
        place, relation = int(rng.integers(2)), RELATIONS[rng.integers(2)]
        items.insert(1 - place, others[rng.integers(len(others))])
    places = layout(Scene(tuple(items), relation), rng)
    edited = [change.edit.applied(own) if n == place else own for n, own in enumerate(items)]
    return paint(items, places), paint(edited, places)


def rows(changes: Sequence[Change], images_of_each: int, *, seed: int) -> list[tuple[str, bytes]]:
    """Return words and PNG files: so many images for each of some changes."""
    rng = np.random.default_rng(seed)
    return [
        (change.edit.text, _png(draw_pair(change, rng)[0]))
        for change in changes
        for _ in range(images_of_each)
    ]


def _png(pixels: Pixels) -> bytes:
    file = BytesIO()
    Image.fromarray(pixels).save(file, "PNG", optimize=True)
    return file.getvalue()
