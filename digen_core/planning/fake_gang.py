"""A gang of which this process plays a member: collectives return at once, and move nothing."""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Any, Final, cast

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.testing._internal.distributed.multi_threaded_pg import ThreadLocalWorld

from digen_core.config.parallel import ParallelConfig
from digen_core.gang.members import ALONE, Gang

REAL_GROUPS: Final = Lock()
"""Held while the groups of this process are hidden or seen again, and while another thread aborts
them: one that was hidden half aborted would be neither."""


@contextmanager
def fake_gang(config: ParallelConfig, size: int, rank: int = 0) -> Iterator[Gang]:
    """Yield a member of a gang of some size, whose default group is that of the body.

    A group that this process is in, it is in again afterwards.

    Args:
        config: how the members share their work.
        size: of the gang.
        rank: of the member.
    """
    if size == 1:
        yield ALONE
        return
    isolate = cast(Any, torch._C)._distributed_c10d._set_thread_isolation_mode  # of groups' names
    with _hidden_groups():
        isolate(True)
        try:
            dist.init_process_group("fake", rank=rank, world_size=size, store=FakeStore())
            yield Gang.of(config)
        finally:
            if dist.is_initialized():
                dist.destroy_process_group()
            isolate(False)


@contextmanager
def _hidden_groups() -> Iterator[None]:
    """Hide the groups that this process is in, as long as the body lasts."""
    module = cast(Any, distributed_c10d)
    with REAL_GROUPS:
        real, module._world = module._world, ThreadLocalWorld()
    try:
        yield
    finally:
        with REAL_GROUPS:
            module._world = real
