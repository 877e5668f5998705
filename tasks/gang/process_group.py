"""The process group of a gang, over which its members compute: the default one of each process."""

import os
import shutil
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Final

import psutil
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore
from torch.distributed.distributed_c10d import _set_pg_timeout

MEETING: Final = timedelta(minutes=2)
"""How long members wait for each other to come: all of them are there when the leader calls."""
COLLECTIVE: Final = timedelta(hours=2)
"""How long they wait for each other from then on: as long as a model may load. One that is gone is
noticed at once, one that is frozen by its heartbeat."""


def form_group(folder: Path, rank: int, size: int) -> None:
    """Make the default group of this process the one of a gang's members.

    Args:
        folder: of the gang, where the members find each other.
        rank: of this one.
        size: of the gang.

    Raises:
        ConnectionError: the others did not come.
    """
    loopback = _loopback()
    os.environ["GLOO_SOCKET_IFNAME"] = os.environ["NCCL_SOCKET_IFNAME"] = loopback
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    has_gpu = torch.cuda.is_available()
    try:
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if has_gpu else "gloo",
            store=FileStore(str(folder / "store"), size),
            rank=rank,
            world_size=size,
            timeout=MEETING,
            device_id=torch.device("cuda", torch.cuda.current_device()) if has_gpu else None,
        )
    except RuntimeError as error:
        raise ConnectionError(f"the other members did not come: {error}") from error
    _set_pg_timeout(COLLECTIVE)


def leave_group(folder: Path, rank: int, size: int) -> None:
    """Leave the group, if this process is in one; members that wait for this one fail.

    The last member to leave removes the folder: the store of one that is leaving would wait for its
    file if another had removed that. Where one was killed, Dask removes it with the leader.

    Args:
        folder: of the gang.
        rank: of this one.
        size: of the gang.
    """
    if dist.is_initialized():
        dist.destroy_process_group()
    with suppress(FileNotFoundError):  # two were the last
        (folder / f"left-{rank}").touch()
        if len(list(folder.glob("left-*"))) == size:
            shutil.rmtree(folder, ignore_errors=True)


def _loopback() -> str:
    """Return the name of this host's loopback interface: a gang is on one host."""
    for name, addresses in psutil.net_if_addrs().items():
        if any(found.address == "127.0.0.1" for found in addresses):
            return name
    raise RuntimeError("this host has no loopback interface, over which a gang's members talk")
