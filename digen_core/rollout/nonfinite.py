"""Samples that became NaN or infinite: which they are, and zeros in their place.

A sample is a row of its own wherever it is computed: what is NaN in one reaches no other. With
zeros in its place all that follows has numbers, and its group is known not to be trained.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor, nn


@dataclass(frozen=True, slots=True)
class Finite:
    """Which rows of some values are finite, known to their device: to ask waits for it."""

    names: tuple[str, ...]
    table: Tensor  # [n, values] bool

    @classmethod
    def of(cls, values: Mapping[str, Tensor | None]) -> Self:
        """Look at values [n, ...] of the same n samples, by name; None: there is none."""
        given = {name: value for name, value in values.items() if value is not None}
        finite = [value.reshape(len(value), -1).isfinite().all(1) for value in given.values()]
        return cls(tuple(given), torch.stack(finite, dim=1))

    def zeroed(self, value: Tensor) -> Tensor:
        """Return a value [n, ...] with zeros in rows that have NaN or Inf; it does not wait."""
        sound = self.table.all(1).reshape(-1, *[1] * (value.ndim - 1))
        return torch.where(sound, value, 0.0)

    def nonfinite(self) -> dict[int, str]:
        """Return the rows that have NaN or Inf, each with the name of the first value that has."""
        return {
            row: next(name for name, good in zip(self.names, found, strict=True) if not good)
            for row, found in enumerate(self.table.tolist())
            if not all(found)
        }


def nonfinite_rows(values: Mapping[str, Tensor | None]) -> dict[int, str]:
    """Return the rows that have NaN or Inf, each with the name of the first value that has.

    It waits for the device once.

    Args:
        values: [n, ...] of the same n samples, by name; None: there is none.
    """
    return Finite.of(values).nonfinite()


def with_zeros(value: Tensor, rows: Collection[int]) -> Tensor:
    """Return a value [n, ...] with zeros in some rows."""
    return value.index_fill(0, torch.tensor(list(rows), device=value.device), 0.0)


@contextmanager
def watched(model: nn.Module) -> Iterator[list[str]]:
    """Yield a list of the modules inside a model whose outputs had NaN or Inf, as they ended."""
    found: list[str] = []

    def look(name: str) -> Callable[[nn.Module, object, object], None]:
        def hook(module: nn.Module, inputs: object, output: object) -> None:
            parts = output if isinstance(output, tuple | list) else [output]
            tensors = [part for part in parts if isinstance(part, Tensor)]
            if not all(bool(tensor.isfinite().all()) for tensor in tensors):
                found.append(name)

        return hook

    hooks = [m.register_forward_hook(look(name)) for name, m in model.named_modules() if name]
    try:
        yield found
    finally:
        for hook in hooks:
            hook.remove()
