"""Weights sharded over the members of a gang: each holds some rows of every parameter (FSDP2).

A block's parameters are gathered when it computes, and let go again. Sharded parameters are
DTensors, and so are their gradients, which the members have added up already; whatever is a plain
tensor is held whole by every member, and its gradient is the member's own part.
"""

import warnings
from collections.abc import Collection, Sequence
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from digen_core.gang.members import Gang
from digen_core.gang.rows import own_rows, rows_of

Value = TypeVar("Value", np.ndarray, Tensor)


def shard(
    transformer: nn.Module,
    blocks: Sequence[nn.Module],
    mesh: DeviceMesh,
    device: torch.device,
    *,
    plain: Collection[nn.Parameter],
    dtype: torch.dtype,
) -> None:
    """Shard the parameters of a transformer, block by block, and move it to a device (collective).

    Args:
        transformer: on the device or the host.
        blocks: of it, a block before those inside it.
        mesh: of the gang's members.
        device: where it is to compute.
        plain: parameters that every member keeps whole.
        dtype: of the others.
    """
    settings: dict[str, Any] = {
        "mesh": mesh,
        "ignored_params": set(plain),
        # the root too: outside of a pass every parameter is its shard
        "reshard_after_forward": True,
        "mp_policy": MixedPrecisionPolicy(reduce_dtype=torch.promote_types(dtype, torch.float32)),
    }
    # no family changes what a block returned in place
    warnings.filterwarnings("ignore", "FSDP2-wrapped module .* returned a view tensor")
    for module in (*reversed(blocks), transformer):
        fully_shard(module, **settings)
    for parameter in plain:
        parameter.data = parameter.data.to(device)
    for module in transformer.modules():
        if isinstance(module, FSDPModule):  # a sum, not a mean; gloo adds up plainly only
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)


def held(tensor: Tensor) -> Tensor:
    """Return what this member holds of a tensor: all of it, or its shard."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def held_of(value: Value, parameter: Tensor) -> Value:
    """Return what this member holds of a whole array or tensor in the place of a parameter."""
    if not isinstance(parameter, DTensor):
        return value
    mesh = parameter.device_mesh
    return value[rows_of(len(value), mesh.get_local_rank(), mesh.size())]


def added_rows(gradient: Tensor, gang: Gang) -> Tensor:
    """Return this member's rows of the sum of the members' parts of a gradient (collective)."""
    if isinstance(gradient, DTensor):  # added up by the backward pass, and dealt in the same rows
        return gradient.to_local()
    if gang.size == 1:
        return gradient
    total = gradient.clone(memory_format=torch.contiguous_format)  # NCCL takes no other
    gang.add_up([total])
    return own_rows(total, gang).clone()  # lets go of the other rows
