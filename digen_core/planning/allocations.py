"""Bytes that a computation allocates at its peak, counted on fake tensors: none is allocated.

torch's FakeTensorMode computes shapes and dtypes of results, and lets go of them as real ones would
be, those that autograd keeps included. On a fake CPU attention is a fused kernel, as flash
attention is on a GPU: no matrix of all pairs of tokens is made.
"""

from collections.abc import Callable
from itertools import chain
from typing import Any
from weakref import finalize

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

_CPU = torch.device("cpu")


class FakeModules:
    """Modules of the meta device, whose computations are counted."""

    def __init__(self, *modules: nn.Module) -> None:
        """Take modules over: they are of no use to others after that."""
        self._mode = FakeTensorMode(allow_non_fake_inputs=True)
        self._own: set[int] = set()  # storages of the modules
        for module in chain.from_iterable(module.modules() for module in modules):
            for name, parameter in [*module.named_parameters(recurse=False)]:
                fake = nn.Parameter(self._faked(parameter), requires_grad=parameter.requires_grad)
                setattr(module, name, fake)
            for name, buffer in [*module.named_buffers(recurse=False)]:
                setattr(module, name, self._faked(buffer))
            for tensor in chain(module.parameters(recurse=False), module.buffers(recurse=False)):
                self._own.add(_storage_of(tensor))

    def peak(self, work: Callable[[], object]) -> int:
        """Return the most bytes that work holds at once, beside the modules."""
        counter = _Counter(self._own)
        with self._mode, counter:
            work()
        return counter.peak

    def _faked(self, tensor: Tensor) -> Tensor:
        if tensor.device.type != "meta":  # made by the module itself, of numbers it needs
            return tensor
        fake: Tensor = FakeTensor(self._mode, tensor.detach(), _CPU)
        return fake


class _Counter(TorchDispatchMode):
    """Counts the storages of what operations return, until nobody holds them any more."""

    def __init__(self, known: set[int]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._alive = dict.fromkeys(known, 0)  # storage -> its bytes; 0: not counted
        self._now = 0
        self.peak = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> object:
        found = func(*args, **(kwargs or {}))
        for value in tree_leaves(found):
            if isinstance(value, Tensor):
                self._add(value)
        return found

    def _add(self, tensor: Tensor) -> None:
        storage, key = tensor.untyped_storage(), _storage_of(tensor)
        if key not in self._alive:
            self._alive[key] = storage.nbytes()
            self._now += storage.nbytes()
            self.peak = max(self.peak, self._now)
            finalize(storage, self._release, key)

    def _release(self, key: int) -> None:
        self._now -= self._alive.pop(key)


def _storage_of(tensor: Tensor) -> int:
    """Return what is the same for tensors that share their memory."""
    address: int = tensor.untyped_storage()._cdata
    return address
