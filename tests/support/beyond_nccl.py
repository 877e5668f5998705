"""What gloo does for members of a gang, and NCCL does not."""

from collections.abc import Callable
from contextlib import suppress

import torch
import torch.distributed as dist

OTHERS: dict[str, Callable[[], object]] = {
    "a dtype": lambda: dist.all_reduce(torch.ones(2, dtype=torch.int16)),
    "gaps between numbers": lambda: dist.all_reduce(torch.ones(2, 2)[:, 0]),
    "a reduction by bits": lambda: dist.all_reduce(
        torch.ones(2, dtype=torch.int32), dist.ReduceOp.BOR
    ),
    "from whomever": lambda: dist.recv(torch.ones(2)),
}


def refused() -> list[str]:
    """Return what was refused, all of which is the same on each member."""
    found = list(OTHERS)
    for name, ask in OTHERS.items():
        with suppress(TypeError, ValueError):
            ask()
            found.remove(name)
    return found


def crossing() -> None:
    """Send to each other before anything is received."""
    other = 1 - dist.get_rank()
    sending = dist.isend(torch.ones(1), other)
    dist.recv(torch.empty(1), other)
    assert sending is not None
    sending.wait()
