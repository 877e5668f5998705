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
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from digen_core.worlds.shapes import COLORS, RELATIONS, SHAPES, Item, Scene, layout, paint

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
    """An edit in a scene: what is asked for, of what, and what else there is."""

    edit: Edit
    before: Item
    beside: Item | None = None  # differs from it in colour and shape


def parse_edit(text: str) -> Edit:
    """Return the edit that words ask for.

    Raises:
        ValueError: they are outside the grammar of this world.
    """
    edit = {edit.text: edit for edit, _ in _edits()}.get(text)
    if edit is None:
        raise ValueError(
            f"prompt {text!r} is no edit of the shapes world; it knows 'make the circle red' and "
            f"'make the red one a circle' with colours {', '.join(COLORS)} and shapes "
            f"{', '.join(SHAPES)}"
        )
    return edit


@cache
def all_changes() -> tuple[Change, ...]:
    """Return every edit of every object, alone and beside each other one that may be there.

    They are 420: 36 recolour and 24 reshape an object, each in 7 scenes.
    """
    return train_changes() + evaluation_changes()


@cache
def train_changes() -> tuple[Change, ...]:
    """Return the 300 changes for pretraining and post-training."""
    return tuple(change for change, is_held_out in _split() if not is_held_out)


@cache
def evaluation_changes() -> tuple[Change, ...]:
    """Return the 120 changes that no training ever sees: each edit beside two of six objects."""
    return tuple(change for change, is_held_out in _split() if is_held_out)


def _split() -> list[tuple[Change, bool]]:
    """Return every change, and whether it is held out."""
    found = []
    for rank, (edit, before) in enumerate(_edits()):
        found.append((Change(edit, before), False))
        others = [
            Item(color, shape)
            for color, shape in product(COLORS, SHAPES)
            if color != before.color and shape != before.shape
        ]
        found += [
            (Change(edit, before, beside), place % 3 == rank % 3)
            for place, beside in enumerate(others)
        ]
    return found


def _edits() -> list[tuple[Edit, Item]]:
    """Return every edit with the object that it is about."""
    found = []
    for color, shape in product(COLORS, SHAPES):
        item = Item(color, shape)
        found += [(Edit("color", shape, own), item) for own in COLORS if own != color]
        found += [(Edit("shape", color, own), item) for own in SHAPES if own != shape]
    return found


def draw_pair(change: Change, rng: np.random.Generator) -> tuple[Pixels, Pixels]:
    """Return a random image [32, 32, 3] of the scene, and the same one edited."""
    items, place, relation = [change.before], 0, None
    if change.beside is not None:
        place, relation = int(rng.integers(2)), RELATIONS[rng.integers(2)]
        items.insert(1 - place, change.beside)
    places = layout(Scene(tuple(items), relation), rng)
    edited = [change.edit.applied(own) if n == place else own for n, own in enumerate(items)]
    return paint(items, places), paint(edited, places)


def rows(changes: Sequence[Change], *, seed: int) -> list[tuple[str, bytes]]:
    """Return words and a PNG file for each of some changes."""
    rng = np.random.default_rng(seed)
    return [(change.edit.text, _png(draw_pair(change, rng)[0])) for change in changes]


def _png(pixels: Pixels) -> bytes:
    file = BytesIO()
    Image.fromarray(pixels).save(file, "PNG", optimize=True)
    return file.getvalue()
