"""Meshes as GPUs make them: torch splits their groups off the default one, as on no CPU."""

import copy
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FakeProcessGroup, ProcessGroupGloo

from digen_core.gang.meshes import mesh_of
from tasks.gang.messages import Join
from tasks.gang.process_group import abort_group, form_group, leave_group


@contextmanager
def splitting(device: str) -> Iterator[None]:
    """Have groups that are formed in the body be split, on a CPU, too: what is split there is gloo.

    Beside NCCL that is split with NCCL's options, of which it takes none.
    """
    form, copied = dist.init_process_group, copy.deepcopy

    def form_bound(backend: str, **settings: Any) -> None:
        form("cpu:gloo", **settings)  # of one device: for each it would be split
        assert dist.group.WORLD is not None
        dist.group.WORLD.bound_device_id = torch.device("cpu", 0)

    def options_of_another(value: Any, *memo: Any) -> Any:
        is_gloo = isinstance(value, ProcessGroupGloo._Options)  # type: ignore[attr-defined]
        other = FakeProcessGroup.Options
        return other() if is_gloo else copied(value, *memo)  # type: ignore[call-arg]

    with ExitStack() as stack:
        if device == "cpu":
            for owner, name, value in (
                (dist, "init_process_group", form_bound),
                (torch.accelerator, "is_available", lambda: True),
                (torch.accelerator, "current_accelerator", lambda *_: torch.device("cpu")),
                (copy, "deepcopy", options_of_another),
            ):
                stack.enter_context(patch.object(owner, name, value))
        yield


def members_when_formed_again(folder: Path, device: str) -> dict[str, tuple[float, timedelta]]:
    """Return of a mesh of this process's second gang how many members its groups have.

    And how long they wait for each other.
    """
    rank, size = dist.get_rank(), dist.get_world_size()
    dist.barrier()  # else the other one may still connect
    abort_group(dist.group.WORLD)
    join = Join(rank, size, folder, tuple(range(size)), None)
    with splitting(device):
        form_group(join, "127.0.0.1")
        mesh = mesh_of(torch.device(device), share=1, ring=1, ulysses=size)
    found = {}
    for name in ("share", "ring", "ulysses"):
        group = mesh.get_group(name)
        dist.all_reduce(ones := torch.ones(1, device=device), group=group)
        options = group._get_backend(torch.device(device)).options
        found[name] = float(ones), options._timeout
    leave_group(join)
    return found
