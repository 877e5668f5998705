"""Context parallelism: the members of a share compute the same samples, each some of their tokens.

Attention needs all of them: for it, members exchange tokens for heads (Ulysses, arXiv:2309.14509).
diffusers does so by a plan, which deals each of a transformer's inputs by itself. A forward pass of
ours whose sequence has more pieces than that deals the whole of it, by the functions below.
"""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from diffusers import ContextParallelConfig
from diffusers.hooks.context_parallel import EquipartitionSharder
from diffusers.models.attention_dispatch import SeqAllToAllDim
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.functional import pad

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


def dealing_mesh(module: Any) -> DeviceMesh | None:
    """Return the members that deal tokens with this one; None: it computes all of them.

    Args:
        module: a transformer or a processor of attention, as `deal_tokens` leaves it.
    """
    config = module._parallel_config
    return None if config is None else config.context_parallel_config._ulysses_mesh


def own_tokens(x: Tensor, mesh: DeviceMesh) -> Tensor:
    """Return a member's tokens [B, ceil(S / n), ...] of x [B, S, ...]; zeros follow the last."""
    own: Tensor = EquipartitionSharder.shard(_divisible(x, mesh), 1, mesh)
    return own


def all_tokens(own: Tensor, mesh: DeviceMesh, number: int) -> Tensor:
    """Return the first S tokens [B, S, ...] of what members have (collective).

    Args:
        own: a member's, [B, ceil(S / n), ...].
        mesh: of n members.
        number: S.
    """
    joined: Tensor = EquipartitionSharder.unshard(own, 1, mesh)
    return joined[:, :number]


def tokens_of_own_heads(own: Tensor, mesh: DeviceMesh, number: int) -> Tensor:
    """Exchange heads for tokens (collective): return [B, S, H / n, D].

    Args:
        own: all heads of a member's tokens, [B, ceil(S / n), H, D].
        mesh: of n members.
        number: S.
    """
    found: Tensor = SeqAllToAllDim.apply(mesh.get_group(), own, 2, 1)
    return found[:, :number]


def heads_of_own_tokens(own: Tensor, mesh: DeviceMesh) -> Tensor:
    """Exchange tokens for heads (collective): return [B, ceil(S / n), H, D].

    Args:
        own: a member's heads of all tokens, [B, S, H / n, D].
        mesh: of n members.
    """
    found: Tensor = SeqAllToAllDim.apply(mesh.get_group(), _divisible(own, mesh), 1, 2)
    return found


def _divisible(x: Tensor, mesh: DeviceMesh) -> Tensor:
    """Return x [B, S, ...] with zeros behind, so that members have equally many tokens."""
    missing = -x.shape[1] % mesh.size()
    return pad(x, (0, 0) * (x.dim() - 2) + (0, missing)) if missing else x


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
