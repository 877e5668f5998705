"""A tiny pipeline of each family: the classes of the published models, random float32 weights.

Built offline in seconds; each family's adapter says of what.
"""

from typing import Any

import torch

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
