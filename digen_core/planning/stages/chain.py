"""A chain: a transformer as its blocks one after the other, and what each of them takes.

All numbers are of one sample at one denoising step, both halves of guidance included.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Block:
    """A block, or what is before or after all of them. FLOPs count a product and a sum as two."""

    name: str  # as in the transformer: transformer_blocks.3
    forward_flops: float
    backward_flops: float  # of what is trained; a block that is computed again counts that here
    weight_bytes: float  # without adapters
    trained_bytes: float  # of adapters, or of all its weights, in the model's dtype
    graph_bytes: float = 0.0  # that a training pass keeps until the gradient is there
    cut_bytes: float = 0.0  # that cross a cut before it, one way
    sum_bytes: float = 0.0  # of the sum of its gradients, in float32

    @property
    def kind(self) -> str:
        """The list of blocks that it is in."""
        return self.name.rpartition(".")[0]

    def is_like(self, other: "Block") -> bool:
        """Whether both are in one list, and take the same."""
        return self.kind == other.kind and replace(other, name=self.name) == self


@dataclass(frozen=True, slots=True)
class Chain:
    """A transformer. What is before its blocks, each stage holds and computes for itself."""

    before: Block
    blocks: tuple[Block, ...]
    after: Block  # held by each stage, computed by the last
    velocity_bytes: float = 0.0  # that the last stage sends to all others
    num_rows: int = 1  # of a batch that passes the stages: 2 with classifier-free guidance

    @property
    def parts(self) -> tuple[Block, ...]:
        """All of it, in the order of the forward pass."""
        return (self.before, *self.blocks, self.after)

    def runs(self) -> Iterator[tuple[Block, ...]]:
        """Yield the parts, those together that follow each other and are alike."""
        run = [self.before]
        for part in self.parts[1:]:
            if part.is_like(run[0]):
                run.append(part)
            else:
                yield tuple(run)
                run = [part]
        yield tuple(run)

    def total(self, field: str) -> float:
        """Return the sum of one of the numbers over all parts."""
        return float(sum(getattr(part, field) for part in self.parts))

    def of_blocks(self, field: str) -> Numbers:
        """Return one of the numbers of each block."""
        return np.array([getattr(block, field) for block in self.blocks], dtype=float)
