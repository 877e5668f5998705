"""Captures on a CPU, in place of a GPU's: the same tensors, other numbers."""

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree


def taped(run: Callable[[], Any]) -> tuple[Any, Callable[[], object]]:
    """Capture what a function computes: its operations, on the tensors that it reads now."""
    result = run()
    tape = make_fx(lambda: pytree.tree_leaves(run()))()

    def again() -> None:
        for own, new in zip(_tensors(result), _tensors(tape()), strict=True):
            own.copy_(new)

    return result, again


def computed_again(run: Callable[[], Any]) -> tuple[Any, Callable[[], object]]:
    """Capture nothing: what a function computes is computed again, compiled code included."""
    result = run()

    def again() -> None:
        for own, new in zip(_tensors(result), _tensors(run()), strict=True):
            own.copy_(new)

    return result, again


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, Tensor)]
