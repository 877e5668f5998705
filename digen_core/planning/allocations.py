"""Bytes that a computation allocates at its peak, counted on fake tensors: none is allocated.

torch's FakeTensorMode computes shapes and dtypes of results, and lets go of them as real ones would
be, those that autograd keeps included. On a fake CPU attention is a fused kernel, as flash
attention is on a GPU: no matrix of all pairs of tokens is made. torch's RMS norm is one on a GPU
only, which keeps what it is given and a number of each row; on a CPU it is a chain of operations
that keep float32 copies, so a fused one stands in for it here.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain
from typing import Any
from unittest.mock import patch
from weakref import finalize

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from digen_core.gang.sharding import held

_CPU = torch.device("cpu")


class FakeModules:
    """Modules of the meta device, whose computations are counted."""

    def __init__(self, *modules: nn.Module) -> None:
        """Take modules over: they are of no use to others after that."""
        self._mode = FakeTensorMode(allow_non_fake_inputs=True)
        self._modules = modules
        for module in chain.from_iterable(module.modules() for module in modules):
            for name, parameter in [*module.named_parameters(recurse=False)]:
                fake = nn.Parameter(self._faked(parameter), requires_grad=parameter.requires_grad)
                setattr(module, name, fake)
            for name, buffer in [*module.named_buffers(recurse=False)]:
                setattr(module, name, self._faked(buffer))

    def change(self, work: Callable[[], object]) -> None:
        """Do what gives the modules other parameters, as sharding does."""
        with self._mode:
            work()

    def peak(self, work: Callable[[], object]) -> int:
        """Return the most bytes that work holds at once, beside the modules."""
        with self.counting() as counter:
            work()
        return counter.peak

    @contextmanager
    def counting(self) -> Iterator["Counter"]:
        """Count, while the body runs, the bytes that are held beside the modules."""
        counter = Counter(self._own())
        fused = patch.object(nn.functional, "rms_norm", fused_rms_norm)
        with self._mode, counter, counter.seeing_resizes(), fused:
            yield counter

    def _own(self) -> set[int]:
        """Return the storages of the modules, which are the same for views."""
        return {
            held(tensor).untyped_storage()._cdata
            for module in self._modules
            for tensor in chain(module.parameters(), module.buffers())
        }

    def _faked(self, tensor: Tensor) -> Tensor:
        if tensor.device.type != "meta":  # made by the module itself, of numbers it needs
            return tensor
        fake: Tensor = FakeTensor(self._mode, tensor.detach(), _CPU)
        return fake


_in_steps = nn.functional.rms_norm


class _FusedRmsNorm(torch.autograd.Function):
    """What torch's kernel on a GPU makes and keeps, without numbers."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor | None) -> Tensor:
        """Return a tensor like the one [..., C] that is normed; it is kept, and 1 / rms of rows."""
        of_rows = torch.empty(*x.shape[:-1], 1, dtype=torch.float32, device=x.device)
        ctx.save_for_backward(x, weight, of_rows)
        return torch.empty_like(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return gradients of both, if they are asked for."""
        x, weight, _ = ctx.saved_tensors
        return torch.empty_like(x), torch.empty_like(weight) if ctx.needs_input_grad[1] else None


def fused_rms_norm(
    x: Tensor, shape: list[int], weight: Tensor | None = None, eps: float | None = None
) -> Tensor:
    """Return a tensor as torch's function does on a GPU, but for the numbers.

    It is one kernel where the weight has the dtype of what is normed.
    """
    if weight is not None and weight.dtype != x.dtype:
        return _in_steps(x, shape, weight, eps)
    found: Tensor = _FusedRmsNorm.apply(x, weight)  # type: ignore[no-untyped-call]
    return found


class Counter(TorchDispatchMode):
    """Counts the storages of what operations return, until nobody holds them any more."""

    def __init__(self, own: set[int]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._own = own  # storages that do not count
        self._alive: dict[int, int] = {}  # storage -> its bytes
        self.now = 0
        self.peak = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> object:
        if func is torch.ops.prim.device.default and isinstance(args[0], FakeTensor):
            return args[0].fake_device  # more than half of all calls ask for it
        found = func(*args, **(kwargs or {}))
        for value in tree_leaves(found):
            if isinstance(value, Tensor):
                self._see(value.untyped_storage())
        return found

    @contextmanager
    def seeing_resizes(self) -> Iterator[None]:
        """Count, while the body runs, storages emptied and filled again: gathered weights are."""
        original = torch.UntypedStorage.resize_

        def resize(storage: torch.UntypedStorage, num_bytes: int) -> object:
            found = original(storage, num_bytes)
            self._see(storage)
            return found

        with patch.object(torch.UntypedStorage, "resize_", resize):
            yield

    def _see(self, storage: torch.UntypedStorage) -> None:
        key = storage._cdata
        if key in self._own:
            return
        if key not in self._alive:
            self._alive[key] = 0
            finalize(storage, self._release, key)
        self.now += storage.nbytes() - self._alive[key]
        self._alive[key] = storage.nbytes()
        self.peak = max(self.peak, self.now)

    def _release(self, key: int) -> None:
        self.now -= self._alive.pop(key)
