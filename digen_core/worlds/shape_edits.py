"""Edits of the world ``shapes``: an image, and words that say what to change about one object.

The words name the object as it is, and the colour that it gets: "make the blue circle red". The
rest of the image, and the object's place, stay as they are.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from io import BytesIO
from itertools import product

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from digen_core.inputs.reading import shown
from digen_core.worlds.shapes import COLORS, RELATIONS, SHAPES, Item, Scene, layout, paint

Pixels = NDArray[np.uint8]


@dataclass(frozen=True, order=True)
class Edit:
    """What words ask for: an object gets another colour."""

    before: Item
    color: str

    @property
    def text(self) -> str:
        """The words."""
        return f"make the {self.before.color} {self.before.shape} {self.color}"

    @property
    def after(self) -> Item:
        """What the object becomes."""
        return Item(self.color, self.before.shape)


@dataclass(frozen=True, order=True)
class Change:
    """An edit in a scene: what is asked for, and what else there is."""

    edit: Edit
    beside: Item | None = None  # differs from the edited object in colour and shape


def parse_edit(text: str) -> Edit:
    """Return the edit that words ask for.

    Raises:
        ValueError: they are outside the grammar of this world.
    """
    edit = {edit.text: edit for edit in _edits()}.get(text)
    if edit is None:
        raise ValueError(
            f"prompt {shown(text)} is no edit of the shapes world; it knows 'make the blue circle "
            f"red' with colours {', '.join(COLORS)} and shapes {', '.join(SHAPES)}"
        )
    return edit


@cache
def all_changes() -> tuple[Change, ...]:
    """Return every edit of every object, alone and beside each other one that may be there.

    They are 252: each of 12 objects in each of 3 other colours, each in 7 scenes.
    """
    return train_changes() + evaluation_changes()


@cache
def train_changes() -> tuple[Change, ...]:
    """Return the 180 changes for pretraining and post-training."""
    return tuple(change for change, is_held_out in _split() if not is_held_out)


@cache
def evaluation_changes() -> tuple[Change, ...]:
    """Return the 72 changes that no training ever sees: each edit beside two of six objects."""
    return tuple(change for change, is_held_out in _split() if is_held_out)


def _split() -> list[tuple[Change, bool]]:
    """Return every change, and whether it is held out."""
    found = []
    for rank, edit in enumerate(_edits()):
        found.append((Change(edit), False))
        others = [
            item
            for item in _items()
            if item.color != edit.before.color and item.shape != edit.before.shape
        ]
        found += [
            (Change(edit, beside), place % 3 == rank % 3) for place, beside in enumerate(others)
        ]
    return found


def _edits() -> list[Edit]:
    return [Edit(item, color) for item in _items() for color in COLORS if color != item.color]


def _items() -> list[Item]:
    return [Item(color, shape) for color, shape in product(COLORS, SHAPES)]


def draw_pair(change: Change, rng: np.random.Generator) -> tuple[Pixels, Pixels]:
    """Return a random image [32, 32, 3] of the scene, and the same one edited."""
    items, place, relation = [change.edit.before], 0, None
    if change.beside is not None:
        place, relation = int(rng.integers(2)), RELATIONS[rng.integers(2)]
        items.insert(1 - place, change.beside)
    places = layout(Scene(tuple(items), relation), rng)
    edited = [change.edit.after if n == place else own for n, own in enumerate(items)]
    return paint(items, places), paint(edited, places)


def rows(changes: Sequence[Change], *, seed: int) -> list[tuple[str, bytes]]:
    """Return words and a PNG file for each of some changes."""
    rng = np.random.default_rng(seed)
    return [(change.edit.text, _png(draw_pair(change, rng)[0])) for change in changes]


def _png(pixels: Pixels) -> bytes:
    file = BytesIO()
    Image.fromarray(pixels).save(file, "PNG", optimize=True)
    return file.getvalue()
