"""Context parallelism: the members of a share compute the same samples, each some of their tokens.

Attention needs all of them: for it, members exchange tokens for heads (Ulysses, arXiv:2309.14509).
"""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from diffusers import ContextParallelConfig
from torch import Tensor

from digen_core.gang.members import Gang
from digen_core.gang.meshes import mesh_of, wait_long

Plan = Mapping[str, Any]
"""Where a transformer's tokens are split and joined, by the name of a module, as diffusers says."""


def deal_tokens(
    transformers: Sequence[Any], gang: Gang, device: torch.device, plan: Plan | None = None
) -> None:
    """Have transformers deal the tokens of samples over the members of each share (collective).

    Args:
        transformers: of diffusers, with their kernel of attention chosen.
        gang: whose member this process is.
        device: where they compute.
        plan: of the transformers; None takes that of diffusers.
    """
    warnings.filterwarnings("ignore", ".*all_gather_tensor. is deprecated", FutureWarning)
    mesh = mesh_of(device, share=gang.num_shares, ring=1, ulysses=gang.context_parallel)
    for transformer in transformers:
        config = ContextParallelConfig(ulysses_degree=gang.context_parallel, mesh=mesh)
        with _some_accelerator():
            transformer.enable_parallelism(config=config, cp_plan=plan)
        wait_long(config._flattened_mesh)


def mask_as_dealt(mask: Tensor, num_text: int, degree: int) -> Tensor:
    """Return a mask of keys [..., latents + text] in the order in which Ulysses joins them.

    That is member after member of a share, and the latents of each before its text.

    Args:
        mask: of keys.
        num_text: tokens of text.
        degree: members of a share; 1: the mask stays as it is.
    """
    if degree == 1:
        return mask
    latents, text = mask.split([mask.shape[-1] - num_text, num_text], dim=-1)
    dealt = zip(latents.chunk(degree, -1), text.chunk(degree, -1), strict=True)
    return torch.cat([part for pair in dealt for part in pair], dim=-1)


@contextmanager
def _some_accelerator() -> Iterator[None]:
    """Let diffusers count one accelerator on a machine that has none: it divides by the number."""
    count = max(torch.accelerator.device_count(), 1)
    with patch.object(torch.accelerator, "device_count", return_value=count):
        yield
