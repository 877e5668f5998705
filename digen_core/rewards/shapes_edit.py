"""The verifier of edits in the world ``shapes``: is what was asked for done, and all else kept?

Objects are found in the source image and in its edit as the reward ``shapes`` finds them. Those of
the source, changed as the prompt says, are what the edit should show, each where it was.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from digen_core.rewards.shapes import Detection, Verdict, as_columns, inspect
from digen_core.worlds.shape_edits import Edit, parse_edit
from digen_core.worlds.shapes import Item

COMPONENTS: Final = ("color", "shape", "place", "count")

_WEIGHTS: Final = {"color": 0.3, "shape": 0.3, "place": 0.2, "count": 0.2}
_NEAR: Final = 3.0
"""Pixels by which the centre of an object may move: shapes of a place differ by about one."""
_FAR: Final = 12.0
"""Pixels from which it is another place altogether."""


def verify_edit(source: NDArray[Any], image: NDArray[Any], prompt: str) -> Verdict:
    """Judge an image [H, W, 3] that a source image [H, W, 3] was to become.

    Raises:
        ValueError: the prompt is no edit of the world, or names no single object of the source.
    """
    return judge_edit(inspect(source), inspect(image), prompt)


def judge_edit(before: Sequence[Detection], found: Sequence[Detection], prompt: str) -> Verdict:
    """Compare the objects found in an edit with those that it should show.

    They are assigned to each other so that as much as possible agrees; extra objects dilute every
    share, so painting more never pays.

    Raises:
        ValueError: the prompt is no edit of the world, or names no single object of the source.
    """
    wanted = _edited(before, parse_edit(prompt))
    components = _components(wanted, found)
    exact = all(value == 1.0 for value in components.values())
    total = sum(_WEIGHTS[name] * components[name] for name in COMPONENTS)
    return Verdict(1.0 if exact else float(total), exact, components)


def shapes_edit(
    images: Tensor, prompts: Sequence[str], sources: Tensor | None = None
) -> dict[str, Tensor]:
    """Score edits [B, 3, H, W] of sources [B, 3, H, W]; float64 [B] for "score" and its parts.

    Raises:
        ValueError: there are no sources, or a prompt names no single object of its source.
    """
    if sources is None:
        raise ValueError("it judges edits, but the prompts come without source images")
    made, before = (
        own.detach().permute(0, 2, 3, 1).to("cpu", torch.float64).numpy()
        for own in (images, sources)
    )
    seen = {key: inspect(own) for key, own in {own.tobytes(): own for own in before}.items()}
    verdicts = [
        judge_edit(seen[source.tobytes()], inspect(image), prompt)
        for source, image, prompt in zip(before, made, prompts, strict=True)
    ]
    return as_columns(verdicts)


def _edited(before: Sequence[Detection], edit: Edit) -> list[Detection]:
    """Return the objects that an edit should show."""
    named = [own for own in before if Item(own.color, own.shape) == edit.before]
    if len(named) != 1:
        raise ValueError(
            f"{edit.text!r} is about one {edit.before.color} {edit.before.shape}, but its source "
            f"image shows {len(named)}, in {len(before)} objects"
        )
    after = replace(named[0], color=edit.color)
    return [after if own is named[0] else own for own in before]


def _components(wanted: Sequence[Detection], found: Sequence[Detection]) -> dict[str, float]:
    """Return the partial credits in [0, 1] of what was found."""
    if not found:
        return dict.fromkeys(COMPONENTS, 0.0)
    colors, shapes, places = (
        np.array([[credit(own, other) for other in found] for own in wanted])
        for credit in (
            lambda own, other: float(own.color == other.color),
            lambda own, other: float(own.shape == other.shape),
            _nearness,
        )
    )
    asked, seen = linear_sum_assignment(colors + shapes + 1.5 * places, maximize=True)
    larger = max(len(wanted), len(found))
    return {
        "color": float(colors[asked, seen].sum()) / larger,
        "shape": float(shapes[asked, seen].sum()) / larger,
        "place": float(places[asked, seen].sum()) / larger,
        "count": max(0.0, 1.0 - abs(len(found) - len(wanted)) / len(wanted)),
    }


def _nearness(one: Detection, other: Detection) -> float:
    """Return 1 for objects at the same place, falling to 0 for those far apart."""
    distance = float(np.hypot(*np.subtract(one.center, other.center)))
    return float(np.clip((_FAR - distance) / (_FAR - _NEAR), 0.0, 1.0))
