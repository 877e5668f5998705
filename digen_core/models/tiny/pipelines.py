"""A tiny pipeline of each family: the classes of the published models, random float32 weights.

Built offline in seconds; each family's adapter says of what.
"""

from typing import Any

import diffusers
import torch

from digen_core.config.families import FAMILIES
from digen_core.config.model import TinySize
from digen_core.models.families import adapter_of
from digen_core.models.tiny.sizes import SIZES


def build_tiny(family: str, *, kind: str = "", size: TinySize = "tiny", seed: int = 0) -> Any:
    """Return a tiny pipeline with random weights.

    Args:
        family: whose classes, schedule and conditioning it has.
        kind: one of the family's kinds; empty: the plain one.
        size: of its transformer.
        seed: of the weights; the global random state is left as it was.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return adapter_of(family).tiny(SIZES[size], kind)


def as_editor(family: str, pipeline: Any) -> Any:
    """Return the pipeline of a family that is shown a source image, of the same parts.

    Args:
        family: one that has such.
        pipeline: of the family; itself, if it is shown one.
    """
    editors = FAMILIES[family].editors
    if type(pipeline).__name__ in editors:
        return pipeline
    return getattr(diffusers, editors[0])(**pipeline.components)
