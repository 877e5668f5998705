"""The world ``shapes``: 32x32 images of coloured shapes, a GenEval in miniature.

Three kinds of prompts:
    single    "a red circle"
    count     "three blue squares"                      (two to four equal objects)
    relation  "a red circle left of a blue square"      (two objects, different in colour and shape)

"a left of b" and "b right of a" describe one scene: :func:`parse_prompt` brings both to the same
:class:`Scene`, and :func:`all_prompts` words every scene in exactly one way.

Images are uint8 [32, 32, 3], RGB, row 0 at the top; positions are (x right, y down) in pixels.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations, product
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from digen_core.inputs.reading import shown

IMAGE_SIZE: Final = 32
BACKGROUND: Final = (22, 22, 30)
COLORS: Final[dict[str, tuple[int, int, int]]] = {
    "red": (225, 40, 45),
    "green": (40, 185, 70),
    "blue": (55, 95, 240),
    "yellow": (245, 215, 50),
}
SHAPES: Final = ("circle", "square", "triangle")
COUNTS: Final = {"two": 2, "three": 3, "four": 4}
RELATIONS: Final = ("left of", "above")
"""The canonical relations; "right of" and "below" are their converses."""
CONVERSES: Final = {"right of": "left of", "below": "above"}

_SUPERSAMPLING: Final = 4

Place = tuple[float, float, float]
"""Where an object is, and how large: (x, y, radius) in pixels."""


@dataclass(frozen=True, order=True)
class Item:
    """One object as a prompt names it."""

    color: str
    shape: str


@dataclass(frozen=True)
class Scene:
    """What a prompt asks for; two prompts ask for the same exactly when their scenes are equal."""

    items: tuple[Item, ...]
    """Every object to be seen, one entry each; in a relation the left or upper one comes first."""
    relation: str | None = None
    """One of ``RELATIONS`` between items 0 and 1, or None."""

    @property
    def kind(self) -> Literal["single", "count", "relation"]:
        """Return the kind of prompt this scene belongs to."""
        if self.relation is not None:
            return "relation"
        return "single" if len(self.items) == 1 else "count"


def parse_prompt(text: str) -> Scene:
    """Return the scene that ``text`` describes.

    Raises:
        ValueError: the text is outside the grammar of this world.
    """
    scene = _scenes_by_text().get(text)
    if scene is None:
        raise ValueError(
            f"prompt {shown(text)} is outside the shapes world; it knows 'a red circle', "
            "'two|three|four red circles' and 'a red circle left of|right of|above|below "
            f"a blue square' (differing in colour and shape) with colours {', '.join(COLORS)} "
            f"and shapes {', '.join(SHAPES)}"
        )
    return scene


@cache
def all_prompts() -> tuple[str, ...]:
    """Return one prompt for every scene of the world: 12 single, 36 count, 144 relation."""
    return train_prompts() + evaluation_prompts()


@cache
def train_prompts() -> tuple[str, ...]:
    """Return the 144 prompts for pretraining and post-training (9, 27 and 108 of each kind)."""
    return tuple(text for text, held_out in _split() if not held_out)


@cache
def evaluation_prompts() -> tuple[str, ...]:
    """Return the 48 prompts that no training ever sees (3, 9 and 36 of each kind)."""
    return tuple(text for text, held_out in _split() if held_out)


def render(scene_or_prompt: Scene | str, rng: np.random.Generator) -> NDArray[np.uint8]:
    """Return one random image of the scene, [32, 32, 3], antialiased."""
    scene = scene_or_prompt
    if isinstance(scene, str):
        scene = parse_prompt(scene)
    return paint(scene.items, layout(scene, rng))


def paint(items: Sequence[Item], places: Sequence[Place]) -> NDArray[np.uint8]:
    """Return an image [32, 32, 3] of objects at places, antialiased."""
    side = IMAGE_SIZE * _SUPERSAMPLING
    canvas = Image.new("RGB", (side, side), BACKGROUND)
    draw = ImageDraw.Draw(canvas)
    for item, (x, y, radius) in zip(items, places, strict=True):
        _draw(draw, item, x * _SUPERSAMPLING, y * _SUPERSAMPLING, radius * _SUPERSAMPLING)
    small = canvas.resize((IMAGE_SIZE, IMAGE_SIZE), Image.Resampling.BOX)
    return np.asarray(small, dtype=np.uint8)


def _item_text(item: Item) -> str:
    return f"a {item.color} {item.shape}"


def _items() -> list[Item]:
    return [Item(color, shape) for color, shape in product(COLORS, SHAPES)]


def _pairs() -> list[tuple[Item, Item]]:
    """Return the 36 unordered pairs of objects that differ in colour and in shape."""
    return [
        (a, b) for a, b in combinations(_items(), 2) if a.color != b.color and a.shape != b.shape
    ]


@cache
def _scenes_by_text() -> dict[str, Scene]:
    """Return every text of the grammar with its scene; 336 texts for 192 scenes."""
    scenes = {_item_text(item): Scene((item,)) for item in _items()}
    for item, (word, count) in product(_items(), COUNTS.items()):
        scenes[f"{word} {item.color} {item.shape}s"] = Scene((item,) * count)
    for a, b in _pairs():
        for first, second in ((a, b), (b, a)):
            for relation in RELATIONS:
                scene = Scene((first, second), relation)
                for text in _relation_texts(scene):
                    scenes[text] = scene
    return scenes


def _relation_texts(scene: Scene) -> tuple[str, str]:
    """Return the two wordings of a relation: the canonical one and its converse."""
    first, second = map(_item_text, scene.items)
    converse = next(word for word, canonical in CONVERSES.items() if canonical == scene.relation)
    return f"{first} {scene.relation} {second}", f"{second} {converse} {first}"


def _split() -> list[tuple[str, bool]]:
    """Return every scene's prompt and whether it is held out: a quarter of each kind.

    The rules hold out, for singles, three colour-shape combinations; for counts, one colour of
    each shape and number; for relations, one of the four arrangements of each pair. So every
    colour, shape, number and relation, and every pair, is trained on in other combinations.
    """
    colors, numbers = list(COLORS), list(COUNTS)
    split = []
    for item in _items():
        index = colors.index(item.color)
        split.append((_item_text(item), index == SHAPES.index(item.shape)))
    for item, word in product(_items(), numbers):
        rank = colors.index(item.color) + SHAPES.index(item.shape) + numbers.index(word)
        split.append((f"{word} {item.color} {item.shape}s", rank % len(colors) == 1))
    for index, (a, b) in enumerate(_pairs()):
        arrangements = product(RELATIONS, ((a, b), (b, a)))
        for place, (relation, items) in enumerate(arrangements):
            wording = _relation_texts(Scene(items, relation))[(index // 4 + place // 2) % 2]
            split.append((wording, place == index % 4))
    return split


def layout(scene: Scene, rng: np.random.Generator) -> list[Place]:
    """Return random places for the objects of a scene."""
    if scene.relation is not None:
        return _relation_layout(scene.relation, rng)
    if len(scene.items) == 1:
        x, y = rng.uniform(11.0, IMAGE_SIZE - 11.0, 2)
        return [(float(x), float(y), float(rng.uniform(7.0, 8.5)))]
    quadrants = rng.choice(4, len(scene.items), replace=False)
    return [_in_quadrant(quadrant % 2, quadrant // 2, rng) for quadrant in quadrants]


def _in_quadrant(column: int, row: int, rng: np.random.Generator) -> Place:
    """Place an object near the middle of a quadrant, clear of its borders."""
    side = IMAGE_SIZE / 2
    x, y = rng.uniform(-2.0, 2.0, 2)
    radius = float(rng.uniform(4.2, 5.2))
    return (column + 0.5) * side + float(x), (row + 0.5) * side + float(y), radius


def _relation_layout(relation: str, rng: np.random.Generator) -> list[Place]:
    """Place two objects in opposite halves, nearly level across the axis of the relation."""
    level = float(rng.uniform(12.0, IMAGE_SIZE - 12.0))
    places = []
    for middle in (IMAGE_SIZE / 4, 3 * IMAGE_SIZE / 4):
        along, across = (
            middle + float(rng.uniform(-1.5, 1.5)),
            level + float(rng.uniform(-1.5, 1.5)),
        )
        x, y = (along, across) if relation == "left of" else (across, along)
        places.append((x, y, float(rng.uniform(4.6, 5.6))))
    return places


def _draw(draw: ImageDraw.ImageDraw, item: Item, x: float, y: float, r: float) -> None:
    _PAINTERS[item.shape](draw, COLORS[item.color], x, y, r)


_Painter = Callable[[ImageDraw.ImageDraw, tuple[int, int, int], float, float, float], None]


def _circle(
    draw: ImageDraw.ImageDraw, fill: tuple[int, int, int], x: float, y: float, r: float
) -> None:
    draw.ellipse((x - r, y - r, x + r, y + r), fill=fill)


def _square(
    draw: ImageDraw.ImageDraw, fill: tuple[int, int, int], x: float, y: float, r: float
) -> None:
    r *= 0.9  # so that the three shapes look about equally large
    draw.rectangle((x - r, y - r, x + r, y + r), fill=fill)


def _triangle(
    draw: ImageDraw.ImageDraw, fill: tuple[int, int, int], x: float, y: float, r: float
) -> None:
    draw.polygon([(x, y - r), (x - r, y + 0.85 * r), (x + r, y + 0.85 * r)], fill=fill)


_PAINTERS: Final[dict[str, _Painter]] = {
    "circle": _circle,
    "square": _square,
    "triangle": _triangle,
}
