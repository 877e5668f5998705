"""A process group over gloo that refuses what NCCL refuses, so that tests on CPUs see it.

NCCL takes contiguous tensors of some dtypes; gloo takes all that are dense. It receives from nobody
whom it is not told, and knows no reduction by bits. In which order it was asked is kept.
"""

from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import ProcessGroup, ProcessGroupGloo, ReduceOp, Store

from support.in_order import RECEIVE, SEND, Asked, Kind

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
_ALIKE: Final = {
    "allgather",
    "all_gather_single",
    "allreduce",
    "broadcast",
    "reduce_scatter_single",
}
"""Of which all members have tensors of the same kinds."""
_REDUCTIONS_BY_BITS: Final = (ReduceOp.BAND, ReduceOp.BOR, ReduceOp.BXOR)

asked: Final[list[Asked]] = []
"""Of all groups of this process."""


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
        values = *arguments, *parameters.values()
        if name == "recv_anysource":
            raise ValueError("NCCL receives from one that it is told")
        _check(name, values)
        asked.append(_asked(self, name, values))
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
        case _ if any(getattr(value, "reduceOp", None) == own for own in _REDUCTIONS_BY_BITS):
            raise ValueError(f"{name}: NCCL reduces by no bits")


def _asked(group: StrictGroup, name: str, values: tuple[Any, ...]) -> Asked:
    members = tuple(dist.get_process_group_ranks(group))
    if name in (SEND, RECEIVE):
        tensors, peer, *_ = values
        return Asked(name, group.group_name, members, _kinds(tensors), members[peer])
    return Asked(name, group.group_name, members, _kinds(values) if name in _ALIKE else ())


def _kinds(value: Any) -> tuple[Kind, ...]:
    match value:
        case list() | tuple():
            return tuple(kind for own in value for kind in _kinds(own))
        case Tensor():
            return ((str(value.dtype), value.numel()),)
    return ()


for _name in dir(ProcessGroup):
    if _name.startswith(_COLLECTIVES):
        setattr(StrictGroup, _name, _checked(_name))

dist.Backend.register_backend(NAME, StrictGroup, devices=["cpu"])
