"""Meshes of a gang's members, over whose dimensions they compute together."""

from datetime import timedelta
from typing import Final

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

COLLECTIVE: Final = timedelta(hours=2)
"""How long members wait for each other: as long as one may load or compile. One that is gone is
noticed at once, one that is frozen by its heartbeat."""


def mesh_of(device: torch.device, **sizes: int) -> DeviceMesh:
    """Return the mesh of all members (collective).

    Args:
        device: where they compute.
        sizes: of its dimensions, by name; their product is the size of the gang.
    """
    torch.empty(0, device=device)  # with none in use yet, a mesh would choose one by the rank
    mesh = init_device_mesh(device.type, tuple(sizes.values()), mesh_dim_names=tuple(sizes))
    wait_long(mesh)
    return mesh


def wait_long(mesh: DeviceMesh) -> None:
    """Have members of a mesh wait for each other as long as may be; with NCCL it is ten minutes."""
    if dist.get_backend() != "fake":  # whose members wait for nobody
        for group in mesh.get_all_groups():
            wait_long_in(group)


def wait_long_in(group: dist.ProcessGroup) -> None:
    """Have the members of a group wait for each other as long as may be."""
    for device in group._device_types:  # torch's own function is another one from 2.14 on
        group._get_backend(device)._set_default_timeout(COLLECTIVE)
