"""Modules that wait in the host's memory while they have nothing to do, or make room for others."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain

import torch
from torch import nn


@contextmanager
def on_device(modules: Sequence[nn.Module], device: torch.device) -> Iterator[None]:
    """Run the body with frozen modules on a device; after it they are where they were.

    What was on the host is kept, so nothing is copied back. What is on the device stays there.
    """
    before = [
        (owner, name, tensor)
        for module in modules
        for owner in module.modules()
        for name, tensor in chain(
            owner.named_parameters(recurse=False), owner.named_buffers(recurse=False)
        )
        if (tensor.device.type, tensor.device.index or 0) != (device.type, device.index or 0)
    ]
    moved: dict[int, torch.Tensor] = {}  # by identity: two modules may share one
    try:
        for owner, name, tensor in before:
            if id(tensor) not in moved:
                moved[id(tensor)] = _copied(tensor, device)
            setattr(owner, name, moved[id(tensor)])
        moved.clear()
        yield
    finally:
        for owner, name, tensor in before:
            setattr(owner, name, tensor)


def _copied(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    copy = tensor.detach().to(device)
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(copy, requires_grad=tensor.requires_grad)
    return copy


@contextmanager
def off_device(modules: Sequence[nn.Module], device: torch.device) -> Iterator[None]:
    """Run the body with modules in the host's memory; after it they are on their device again.

    Their parameters stay the same objects, which versions and compiled code know. The copy on the
    host is there for as long as the body runs only.
    """
    tensors = [
        tensor for module in modules for tensor in chain(module.parameters(), module.buffers())
    ]
    try:
        for tensor in tensors:
            tensor.data = tensor.data.to("cpu", copy=True)
        torch.cuda.empty_cache()
        yield
    finally:
        for tensor in tensors:
            tensor.data = tensor.data.to(device)
