"""A second device without hardware: tensors that claim it, and compute on the CPU.

What a GPU refuses is refused here, too: operators whose tensors are on different devices. The
numbers are real, so that a whole iteration can be compared with one on the CPU. It is torch's
device for backends written in Python, which this process has once this module is imported.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as trees
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.backend_registration import (
    _DummyBackendModule,
    _setup_privateuseone_for_python_backend,
)

NAME = "second"


class _Backend(_DummyBackendModule):
    """What torch asks of a device beside its operators."""

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16]

    def get_rng_state(self, device: object = None) -> torch.Tensor:
        return torch.get_rng_state()

    def set_rng_state(self, state: torch.Tensor, device: object = None) -> None:
        torch.set_rng_state(state)


_setup_privateuseone_for_python_backend(NAME, _Backend())

aten = torch.ops.aten
_CROSSING = {aten.copy_.default, aten._to_copy.default}
_INDEXING = {aten.index.Tensor, aten.index_put_.default, aten._index_put_impl_.default}
"""Operators that GPUs, too, take with indices of the CPU."""
_READING = {aten._local_scalar_dense.default, aten.is_nonzero.default, aten.nonzero.default}
"""Operators of which the host has to know what the device computed."""
_LAZY = {aten._conj.default: aten.conj_physical.default, aten._neg_view.default: aten.neg.default}
"""Views that are computed late on the CPU, and what computes them at once."""
_MAKERS = {torch.tensor, torch.as_tensor, torch.asarray}
"""What makes tensors of Python's numbers, past what a mode sees."""


_listening: list[list[str]] = []


def _tell(what: str) -> None:
    for told in _listening:
        told.append(what)


class MixedDevicesError(RuntimeError):
    """An operator was given tensors of two devices."""


class _Second(torch.Tensor):
    """A tensor of the second device, whose numbers are in one of the CPU."""

    own: torch.Tensor
    __torch_function__: ClassVar[Any] = torch._C._disabled_torch_function_impl

    def __new__(cls, own: torch.Tensor) -> "_Second":
        found = torch.Tensor._make_wrapper_subclass(
            cls,
            own.size(),
            strides=own.stride(),
            storage_offset=own.storage_offset(),
            dtype=own.dtype,
            device=torch.device(NAME, 0),
        )
        found.own = own
        return found

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        return _computed(func, args, kwargs or {})

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"{NAME}({self.detach().own})"  # type: ignore[attr-defined]

    def tolist(self) -> Any:
        _tell("read")
        return self.detach().own.tolist()  # type: ignore[attr-defined]


def _computed(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Compute an operator on the CPU; its result claims the device that it would be on.

    Raises:
        MixedDevicesError: some of its tensors are on the second device, and others, of one
            dimension or more, are not.
    """
    tensors = [leaf for leaf in trees.tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
    there = [tensor for tensor in tensors if isinstance(tensor, _Second)]
    are_mixed = there and any(t.dim() and not isinstance(t, _Second) for t in tensors)
    if are_mixed and func not in _CROSSING | _INDEXING:
        raise MixedDevicesError(f"{func} of {[(str(t.device), *t.shape) for t in tensors]}")
    stays = bool(there)
    if there and func in _READING:
        _tell("read")
    if kwargs.get("device") is not None:
        stays = torch.device(kwargs["device"]).type == NAME
        if func in _CROSSING and stays != bool(there):
            _tell("sent" if stays else "read")
        kwargs = {**kwargs, "device": torch.device("cpu")}
    own_args, own_kwargs = trees.tree_map_only(_Second, lambda t: t.own, (args, kwargs))
    result = _LAZY.get(func, func)(*own_args, **own_kwargs)
    known = {id(tensor.own): tensor for tensor in there}  # what it writes into

    def claimed(value: torch.Tensor) -> torch.Tensor:
        if id(value) in known:
            return known[id(value)]
        return _Second(value) if stays and not isinstance(value, _Second) else value

    return trees.tree_map_only(torch.Tensor, claimed, result)


class _Operators(TorchDispatchMode):
    """Operators without tensors of a device, such as what makes them."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _computed(func, args, kwargs or {})


class _Makers(TorchFunctionMode):
    """Functions that reach the device past its operators."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        device = kwargs.get("device")
        if func in _MAKERS and device is not None and torch.device(device).type == NAME:
            return func(*args, **{**kwargs, "device": "cpu"}).to(device)
        if func is torch.Tensor.new_tensor and isinstance(args[0], _Second):
            return torch.tensor(args[1], dtype=kwargs.get("dtype", args[0].dtype)).to(NAME)
        if func is torch.Tensor.__getitem__ and isinstance(args[0], _Second):
            index = args[1] if isinstance(args[1], tuple) else (args[1],)
            lists = [torch.tensor(part) if isinstance(part, list) else part for part in index]
            return func(args[0], tuple(lists))
        return func(*args, **kwargs)


@contextmanager
def told() -> Iterator[list[str]]:
    """Yield a list of what the host waits for in the body: numbers are "read" or "sent"."""
    found: list[str] = []
    _listening.append(found)
    try:
        yield found
    finally:
        _listening.remove(found)


@contextmanager
def second_device() -> Iterator[str]:
    """Run the body with a second device; yields its name."""
    with _Operators(), _Makers():  # type: ignore[no-untyped-call]
        yield NAME
