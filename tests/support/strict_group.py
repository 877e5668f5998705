"""A process group over gloo that refuses what NCCL refuses, so that tests on CPUs see it.

NCCL takes contiguous tensors of some dtypes; gloo takes all that are dense.
"""

from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import ProcessGroup, ProcessGroupGloo, Store

NAME: Final = "strict"
"""By which torch knows it."""
TAKEN: Final = {
    torch.bool,
    torch.int8,
    torch.uint8,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
}
_COLLECTIVES: Final = (
    "all",
    "_allgather",
    "barrier",
    "broadcast",
    "gather",
    "recv",
    "reduce",
    "_reduce",
    "scatter",
    "send",
)


class StrictGroup(ProcessGroup):
    """The group: what is asked of it is checked, and done by gloo."""

    def __init__(self, store: Store, rank: int, size: int, timeout: timedelta) -> None:
        super().__init__(rank, size)  # type: ignore[call-arg]
        self._rank, self._size = rank, size
        self.gloo = ProcessGroup(store, rank, size)
        kind = ProcessGroup.BackendType.GLOO
        self.gloo._set_default_backend(kind)
        backend = ProcessGroupGloo(store, rank, size, timeout)
        self.gloo._register_backend(torch.device("cpu"), kind, backend)

    def getBackendName(self) -> str:  # noqa: N802 (torch's)
        return NAME

    def rank(self) -> int:
        return self._rank

    def size(self) -> int:
        return self._size

    @property
    def group_name(self) -> str:  # type: ignore[override]
        return dist.distributed_c10d._world.pg_names[self]


def _checked(name: str) -> Callable[..., Any]:
    def call(self: StrictGroup, *arguments: Any, **parameters: Any) -> Any:
        _check(name, (*arguments, *parameters.values()))
        return getattr(self.gloo, name)(*arguments, **parameters)

    return call


def _check(name: str, value: Any) -> None:
    match value:
        case list() | tuple():
            for own in value:
                _check(name, own)
        case Tensor():
            if value.dtype not in TAKEN:
                raise TypeError(f"{name}: NCCL takes no {value.dtype}")
            if not value.is_contiguous():
                raise ValueError(f"{name}: NCCL takes no tensor with the strides {value.stride()}")


for _name in dir(ProcessGroup):
    if _name.startswith(_COLLECTIVES):
        setattr(StrictGroup, _name, _checked(_name))

dist.Backend.register_backend(NAME, StrictGroup, devices=["cpu"])
