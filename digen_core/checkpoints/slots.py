"""Slots: where other programs have the layers that diffusers' transformers have."""

import re
from typing import Final, NamedTuple

from digen_core.checkpoints.slot_tables import (
    BLOCKS,
    BLOCKS_OF_KOHYA,
    DIFFUSERS_NAMES,
    FINAL,
    OUTSIDE,
    OUTSIDE_OF_KOHYA,
    REFINER,
    UNKNOWN_TO_KOHYA,
    Table,
    Target,
)


class Slot(NamedTuple):
    """Where a layer is in a program's model."""

    layer: str
    part: int = 0
    """Of the layers that are one matrix there, from the top."""

    heights: tuple[int, ...] = (1,)
    """Of those parts, in inputs of the layer."""

    swapped: bool = False
    """Whether shift and scale, the halves of what it returns, are in the other order there."""


_LISTS: Final = (
    re.escape(REFINER),
    "(?:single_)?(?:transformer_)?blocks",
    "layers",
    "(?:noise|context)_refiner",
)
_BLOCK: Final = re.compile(rf"({'|'.join(_LISTS)})\.(\d+)\.")


def slot_of(target: Target, family: str, layer: str, shape: tuple[int, int]) -> Slot | None:
    """Return the slot of a layer; None: it is not known where, or the program loads none there.

    Args:
        target: the program.
        family: of the transformer, one that the program knows.
        layer: its name in diffusers' transformer.
        shape: outputs and inputs.
    """
    found = _BLOCK.match(layer)
    name = f"{found[1]}.#.{layer[found.end() :]}" if found else layer
    slot = _blocks(target, family).get(name) or _outside(target, family).get(name)
    if slot is None:
        return None
    if target == "comfyui" and family in DIFFUSERS_NAMES:
        return Slot(layer)
    own, _, part = slot.replace("#", found[2] if found else "").partition(":")
    heights = (1,) if not part else (1, 1, 1, 4) if own.endswith("linear1") else (1, 1, 1)
    return Slot(own, int(part or 0), heights, _is_swapped(family, layer, shape))


def is_known(target: Target, family: str) -> bool:
    """Say whether a program is known to load LoRAs of a family."""
    return family in BLOCKS and not (target == "kohya" and family in UNKNOWN_TO_KOHYA)


def _blocks(target: Target, family: str) -> Table:
    own = BLOCKS_OF_KOHYA.get(family) if target == "kohya" else None
    return BLOCKS[family] if own is None else own


def _outside(target: Target, family: str) -> Table:
    if target == "comfyui":
        return OUTSIDE[family] | (FINAL if family == "flux" else {})
    return OUTSIDE[family] if family in OUTSIDE_OF_KOHYA else {}


def _is_swapped(family: str, layer: str, shape: tuple[int, int]) -> bool:
    """Say so of layers that return a scale and a shift: the published models' have the shift first.

    Of sd3's last block the text's norm is one, too.
    """
    if family not in ("flux2", "sd3", "hunyuan_video", "hunyuan_video15"):
        return False
    is_last_norm = layer.endswith(".norm1_context.linear") and shape[0] == 2 * shape[1]
    return layer == "norm_out.linear" or is_last_norm
