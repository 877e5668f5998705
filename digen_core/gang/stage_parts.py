"""What members with different stages make together of what is trained: its values, its gradient.

A parameter outside of the blocks is on every stage; one of a block is on one stage of each share.
"""

from collections.abc import Iterator, Mapping

import torch
import torch.distributed as dist
from torch import Tensor

from digen_core.gang.members import Gang

Kind = tuple[torch.Size, torch.dtype, str]
"""Shape, dtype and type of device of a tensor."""


def loaded_values(
    own: Mapping[str, Tensor], trained: Mapping[str, Tensor], gang: Gang
) -> Iterator[tuple[str, Tensor]]:
    """Yield the values of all that is trained, whichever stage has it (collective).

    Args:
        own: of this stage, by name.
        trained: of all stages, in the order of the whole; a stage may have no numbers of it.
        gang: whose member this process is.
    """
    if gang.stages == 1:
        yield from ((name, value.detach()) for name, value in own.items())
        return
    names = gang.everyone(set(own))
    for name, like in trained.items():
        holder = next(rank for rank, held in enumerate(names) if name in held)
        value = torch.empty(like.shape, dtype=like.dtype)
        if gang.rank == holder:
            value.copy_(own[name].detach())
        if value.numel():
            dist.broadcast(value.reshape(-1).view(torch.uint8), src=holder)
        yield name, value


def gradients_of_all(own: Mapping[str, Tensor], gang: Gang) -> Iterator[tuple[str, Tensor]]:
    """Yield this member's part of each gradient: 0 of what only others have (collective).

    Args:
        own: gradients of this member's stage, by name.
        gang: whose member this process is.
    """
    if gang.stages == 1:
        yield from own.items()
        return
    kinds = {name: (value.shape, value.dtype, value.device.type) for name, value in own.items()}
    for name, (shape, dtype, device) in _joined(gang.everyone(kinds)).items():
        yield name, own[name] if name in own else torch.zeros(shape, dtype=dtype, device=device)


def _joined(parts: list[dict[str, Kind]]) -> dict[str, Kind]:
    """Return what all members have, in the same order on each."""
    return {name: found for part in parts for name, found in part.items()}
