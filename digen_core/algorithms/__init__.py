"""Algorithms: one file each, with its settings, what it needs of a run, and its loss.

A config chooses one by ``algorithm.type``; nothing else in digen knows them by name. To add one is
to write its file and to add its row here. Its methods that compute with tensors import
`digen_core.maths` when they are called, so that a config is read without torch.
Formulas and sources: docs/algorithms.md.
"""

from pkgutil import resolve_name
from typing import TYPE_CHECKING, Annotated, Final, Union

from pydantic import Field

from digen_core.algorithms.base import Algorithm

_CLASSES: Final = (
    "flow_grpo:FlowGrpo",
    "grpo_guard:GrpoGuard",
    "flow_dppo:FlowDppo",
    "dance_grpo:DanceGrpo",
    "mix_grpo:MixGrpo",
    "ddpo:Ddpo",
    "longcat:LongCat",
    "diffusion_nft:DiffusionNft",
    "awm:Awm",
    "dgpo:Dgpo",
    "dpo:Dpo",
)

ALGORITHMS: Final[dict[str, type[Algorithm]]] = {
    found.name(): found
    for found in (resolve_name(f"digen_core.algorithms.{place}") for place in _CLASSES)
}
"""Every algorithm by the ``type`` that chooses it."""

DEFAULT: Final = "flow_grpo"
"""The algorithm of a config that names none."""

if TYPE_CHECKING:
    AnyAlgorithm = Algorithm
else:
    AnyAlgorithm = Annotated[Union[*ALGORITHMS.values()], Field(discriminator="type")]
"""An algorithm by its ``type``, as a config holds it."""
