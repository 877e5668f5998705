"""The verifier of the world ``shapes``: does an image show what its prompt asks for?

It looks at an image as GenEval's detector does: segment coloured regions, name the colour and the
shape of each from its geometry, then compare the objects found with the objects asked for. It
knows the world's colours and nothing else of its renderer.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import ndimage
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from digen_core.worlds.shapes import BACKGROUND, COLORS, Scene, parse_prompt

OTHER: Final = "other"
"""The name of a colour or a shape that the world does not have."""
MIN_AREA: Final = 8
"""Regions of fewer pixels are specks: the smallest triangle of the world covers about 24."""
COMPONENTS: Final = ("color", "shape", "relation", "count")

_WEIGHTS: Final = {"color": 0.3, "shape": 0.3, "relation": 0.2, "count": 0.2}
_MIN_COSINE: Final = 0.94
"""Least agreement between a pixel's direction from the background and that of its colour."""
_BACKGROUND: Final = np.array(BACKGROUND, dtype=np.float64) / 255
_TOWARDS: Final = np.array(list(COLORS.values()), dtype=np.float64) / 255 - _BACKGROUND
_LENGTHS: Final = np.linalg.norm(_TOWARDS, axis=1)
_NAMES: Final = (*COLORS, OTHER)

_SHAPE_FEATURES: Final = {
    # fill of the bounding box, centroid below the middle / height, moment of inertia / area^2
    "circle": (np.pi / 4, 0.0, 1 / (2 * np.pi)),
    "square": (1.0, 0.0, 1 / 6),
    # Ideally (1/2, 1/6, 0.193), but an apex and a base row that fill their pixels in part look
    # like a shorter, fuller triangle at this resolution.
    "triangle": (0.6, 0.13, 0.196),
}
_FEATURE_SCALES: Final = (0.1, 0.06, 0.015)
_MAX_DISTANCE: Final = 1.6
_MAX_ELONGATION: Final = 1.5


@dataclass(frozen=True)
class Detection:
    """One object seen in an image."""

    color: str
    shape: str
    center: tuple[float, float]
    """(x, y) in pixels."""
    area: float
    """In pixels; edge pixels count by their coverage."""


@dataclass(frozen=True)
class Verdict:
    """How well an image meets its prompt."""

    score: float
    """In [0, 1], and 1 exactly when ``exact``."""
    exact: bool
    components: dict[str, float]
    """Partial credit in [0, 1] by ``COMPONENTS``; a relation that is not asked for counts 1."""


def inspect(image: NDArray[Any]) -> tuple[Detection, ...]:
    """Return the objects in an image [H, W, 3], float in [0, 1] or uint8.

    Raises:
        ValueError: the image has another shape or values that are not finite.
    """
    contrast = _pixels(image) - _BACKGROUND
    dots = contrast @ (_TOWARDS / _LENGTHS[:, None]).T
    nearest = dots.argmax(axis=-1)
    dot = dots.max(axis=-1)
    coverage = dot / _LENGTHS[nearest]
    pure = dot >= _MIN_COSINE * np.linalg.norm(contrast, axis=-1)
    named = np.where(coverage > 0.5, np.where(pure, nearest, len(COLORS)), -1)
    found: list[Detection] = []
    for index, color in enumerate(_NAMES):
        labels, count = ndimage.label(named == index)
        if count:
            found += _regions(labels, coverage, color)
    return tuple(found)


def verify(image: NDArray[Any], prompt: str) -> Verdict:
    """Judge an image [H, W, 3] against a prompt of the world."""
    return judge(inspect(image), prompt)


def judge(found: Sequence[Detection], prompt: str) -> Verdict:
    """Compare the objects found in an image with those that the prompt asks for.

    They are assigned to each other so that as many colours and shapes as possible agree; extra
    objects dilute every share, so painting more never pays.
    """
    scene = parse_prompt(prompt)
    components = _components(scene, found)
    exact = all(value == 1.0 for value in components.values())
    weights = {k: w for k, w in _WEIGHTS.items() if k != "relation" or scene.relation is not None}
    total = sum(weights[k] * components[k] for k in weights) / sum(weights.values())
    return Verdict(1.0 if exact else float(total), exact, components)


def shapes(images: Tensor, prompts: Sequence[str]) -> dict[str, Tensor]:
    """Score images [B, 3, H, W] in [0, 1]; return float64 [B] for "score" and its parts."""
    if len(images) != len(prompts):
        raise ValueError(f"{len(images)} images but {len(prompts)} prompts")
    arrays = images.detach().permute(0, 2, 3, 1).to("cpu", torch.float64).numpy()
    verdicts = [verify(image, prompt) for image, prompt in zip(arrays, prompts, strict=True)]
    return as_columns(verdicts)


def as_columns(verdicts: Sequence[Verdict]) -> dict[str, Tensor]:
    """Return float64 [B] for "score", "exact" and each component of B verdicts."""
    columns = {
        "score": [v.score for v in verdicts],
        "exact": [float(v.exact) for v in verdicts],
        **{name: [v.components[name] for v in verdicts] for name in verdicts[0].components},
    }
    return {name: torch.tensor(values, dtype=torch.float64) for name, values in columns.items()}


def _pixels(image: NDArray[Any]) -> NDArray[np.float64]:
    """Return the image as float64 in [0, 1]."""
    if image.ndim != 3 or image.shape[2] != 3:
        raise ValueError(f"expected an image [H, W, 3], got shape {image.shape}")
    pixels = image.astype(np.float64)
    if image.dtype == np.uint8:
        return pixels / 255
    if not np.isfinite(pixels).all():
        raise ValueError("the image has values that are not finite")
    return pixels


def _regions(
    labels: NDArray[np.int32], coverage: NDArray[np.float64], color: str
) -> list[Detection]:
    """Return the connected regions of one colour that are no specks."""
    found = []
    for number, box in enumerate(ndimage.find_objects(labels), start=1):
        rows, columns = (slice(max(0, s.start - 1), s.stop + 1) for s in box)
        region = labels[rows, columns] == number
        if region.sum() < MIN_AREA:
            continue
        # One pixel around the region holds its antialiased edge: sub-pixel areas and moments.
        rim = ndimage.binary_dilation(region, structure=np.ones((3, 3), dtype=bool))
        inside = coverage[rows, columns]
        weights = np.where(rim, np.clip(inside / np.median(inside[region]), 0, 1), 0.0)
        area, x, y, shape = _geometry(weights)
        found.append(Detection(color, shape, (x + columns.start, y + rows.start), area))
    return found


def _geometry(weights: NDArray[np.float64]) -> tuple[float, float, float, str]:
    """Return area, centre (x, y) and shape of a region given by its coverage [h, w]."""
    across, down = weights.sum(axis=1), weights.sum(axis=0)  # widths of rows, heights of columns
    area = float(weights.sum())
    width, height = float(across.max()), float(down.max())
    xs, ys = np.arange(len(down)) + 0.5, np.arange(len(across)) + 0.5
    x, y = float(down @ xs) / area, float(across @ ys) / area
    inertia = (float(down @ (xs - x) ** 2) + float(across @ (ys - y) ** 2)) / area**2
    if max(width, height) > _MAX_ELONGATION * min(width, height):
        return area, x, y, OTHER
    # Outermost edges to sub-pixel precision, from the coverage of the outermost rows.
    middle = _middle(across)
    features = (area / (width * height), (y - middle) / height, inertia)
    return area, x, y, _shape(features)


def _middle(across: NDArray[np.float64]) -> float:
    """Return the height midway between the region's first and last row, in pixels."""
    filled = np.minimum(across, 1.0)
    rows = np.flatnonzero(filled > 0.1)
    top = rows[0] + 1 - filled[rows[0]]
    bottom = rows[-1] + filled[rows[-1]]
    return float(top + bottom) / 2


def _shape(features: tuple[float, float, float]) -> str:
    """Return the shape whose ideal features are nearest, or ``OTHER`` if none is near."""
    distances = {
        name: float(
            np.linalg.norm(
                [(f - g) / s for f, g, s in zip(features, ideal, _FEATURE_SCALES, strict=True)]
            )
        )
        for name, ideal in _SHAPE_FEATURES.items()
    }
    best = min(distances, key=lambda name: distances[name])
    return best if distances[best] <= _MAX_DISTANCE else OTHER


def _components(scene: Scene, found: Sequence[Detection]) -> dict[str, float]:
    """Return the partial credits of an image in which ``found`` was detected."""
    relation = 1.0 if scene.relation is None else 0.0
    if not found:
        return {"color": 0.0, "shape": 0.0, "relation": relation, "count": 0.0}
    colors = np.array([[d.color == item.color for d in found] for item in scene.items])
    shapes_ = np.array([[d.shape == item.shape for d in found] for item in scene.items])
    # Colour decides between equally good assignments: it is what a region is told apart by.
    asked, seen = linear_sum_assignment(1.01 * colors + 1.0 * shapes_, maximize=True)
    larger = max(len(scene.items), len(found))
    if scene.relation is not None and len(asked) == 2:
        first, second = (found[seen[i]] for i in np.argsort(asked))
        relation = _relation_credit(scene.relation, first.center, second.center)
    return {
        "color": float(colors[asked, seen].sum()) / larger,
        "shape": float(shapes_[asked, seen].sum()) / larger,
        "relation": relation,
        "count": max(0.0, 1.0 - abs(len(found) - len(scene.items)) / len(scene.items)),
    }


def _relation_credit(
    relation: str, first: tuple[float, float], second: tuple[float, float]
) -> float:
    """Return 1 if the second object lies within 45 degrees of the asked direction, else less."""
    dx, dy = second[0] - first[0], second[1] - first[1]
    along, across = (dx, dy) if relation == "left of" else (dy, dx)
    if along > abs(across):
        return 1.0
    distance = float(np.hypot(dx, dy))
    return 0.5 * max(0.0, along / distance) if distance else 0.0
