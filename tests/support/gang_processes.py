"""Gangs for tests: processes of one default group, on CPUs or a GPU each.

A server process imports the models once and forks the members, which then start in no time. It is
no fork of the tests' own process, whose threads may hold locks. There is one such server in a
process: workers of clusters are its copies, too, so it imports what they need. Where there is a GPU
no fork could use it, as diffusers asks for it when it is imported: there each member imports for
itself, once it is said which GPU it sees.
"""

import gc
import multiprocessing
import os
import pickle
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as processes

from digen_core.config.families import FAMILIES
from support import strict_group
from support.in_order import stuck
from tasks.cluster.start_method import IMPORTS, start_method
from tasks.gang.process_group import abort_group
from tasks.worker.followers import gpus_of

_ADAPTERS = {family.adapter.partition(":")[0] for family in FAMILIES.values()}
_MODELS = [f"digen_core.models.families.{name}" for name in sorted(_ADAPTERS)]
_TIMEOUT = timedelta(minutes=10)  # a member may compile while others wait


def run_gang(
    size: int, folder: Path, body: Callable[..., Any], *arguments: Any, device: str = "cpu"
) -> list[Any]:
    """Return what each member of a gang returns.

    What they ask of each other is such that NCCL, which does it in that order, could do it, too.

    Args:
        size: of the gang.
        folder: an empty one.
        body: of a module in ``support``; it is called with the arguments.
        arguments: for it.
        device: of the members: the CPU, or ``cuda`` for a GPU each.
    """
    gpus = gpus_of(os.environ, size) if device == "cuda" else [""] * size
    multiprocessing.set_forkserver_preload([*IMPORTS, *_MODELS])
    work = pickle.dumps((body, arguments))  # read where the member's GPU is the one that it sees
    processes.start_processes(  # type: ignore[attr-defined, no-untyped-call]
        _member, (gpus, folder, work), nprocs=size, start_method=start_method()
    )
    found = [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(size)]
    waiting = stuck([asked for asked, _ in found])
    assert not waiting, f"over NCCL they would wait for ever: {waiting}"
    return [returned for _, returned in found]


def _member(rank: int, gpus: Sequence[str], folder: Path, work: bytes) -> None:
    torch.set_num_threads(1)
    gc.freeze()  # what the server has imported, which is much to look through
    os.environ["CUDA_VISIBLE_DEVICES"] = gpus[rank]
    body, arguments = pickle.loads(work)
    has_gpu = bool(gpus[rank])
    dist.init_process_group(
        "cpu:gloo,cuda:nccl" if has_gpu else strict_group.NAME,
        store=dist.FileStore(str(folder / "store"), len(gpus)),  # type: ignore[attr-defined]
        rank=rank,
        world_size=len(gpus),
        timeout=_TIMEOUT,
        device_id=torch.device("cuda", 0) if has_gpu else None,
    )
    try:
        returned = body(*arguments)
        torch.save((strict_group.asked, returned), folder / f"{rank}.pt")
    finally:
        abort_group(dist.group.WORLD)
