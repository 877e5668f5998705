"""Cut a transformer into stages: runs of its blocks, each held by one member of a share.

A stage is the stock transformer of diffusers with its own blocks only. What comes before the blocks
(embedders of patches, time and text, rotary embeddings, masks) is small and depends on what every
member has: each stage computes it for itself. So only the streams cross a cut, which a block is
given by the one before it. A forward pass of a stage that is not the last ends at its cut.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache, partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from digen_core.config.families import Family
from digen_core.gang.members import Gang


class CutReached(Exception):  # noqa: N818 - no error: it ends the forward pass of a stage
    """A forward pass has come to the end of the stage."""


class Crossing:
    """What comes into a stage, and what goes out of it, in one forward pass of some samples."""

    def __init__(
        self, streams: Sequence[str], receive: Callable[[Sequence[Tensor]], list[Tensor]]
    ) -> None:
        """Prepare for a pass.

        Args:
            streams: what crosses cuts, as the parameters of blocks are called.
            receive: returns what the stage before sent, like the tensors that it is given.
        """
        self.came: list[Tensor] = []  # leaves of the graph, if there is one
        self.left: list[Tensor] = []  # nothing on the last stage
        self._streams = streams
        self._receive = receive

    @contextmanager
    def under_way(self) -> Iterator[None]:
        """Have the forward pass in the body be this one; it ends at the stage's cut."""
        token = _UNDER_WAY.set(self)
        try:
            yield
        except CutReached:
            pass
        finally:
            _UNDER_WAY.reset(token)

    def enter(self, block: nn.Module, *arguments: Any, **parameters: Any) -> Any:
        """Call the first own block with what the stage before sent.

        With gradient checkpointing it is called again on the way back, with the same.
        """
        bound = inspect.signature(block.forward).bind(*arguments, **parameters)
        if not self.came:
            # at every cut a stream has the shape and dtype with which it comes to the first block
            found = self._receive([bound.arguments[name] for name in self._streams])
            self.came = [tensor.requires_grad_(torch.is_grad_enabled()) for tensor in found]
        bound.arguments.update(zip(self._streams, self.came, strict=True))
        return block(*bound.args, **bound.kwargs)

    def leave(
        self, hidden_states: Tensor, encoder_hidden_states: Tensor | None = None, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor | None]:
        """Keep what the next stage's first block would be given."""
        given = {"hidden_states": hidden_states, "encoder_hidden_states": encoder_hidden_states}
        self.left = [tensor for name in self._streams if (tensor := given[name]) is not None]
        return hidden_states, encoder_hidden_states


_UNDER_WAY: ContextVar[Crossing | None] = ContextVar("crossing", default=None)


class StageBlocks(nn.ModuleList):
    """The blocks of a list that are a stage's own, under the names that they have in the whole."""

    def __init__(self, blocks: Mapping[str, nn.Module], *, begins: bool, ends: bool) -> None:
        """Keep blocks.

        Args:
            blocks: by their number in the whole list.
            begins: whether the first of them is the first of the stage, and not of the transformer.
            ends: whether the stage's cut is in this list.
        """
        super().__init__()
        self._modules.update(blocks)
        self._begins, self._ends = begins, ends

    def __iter__(self) -> Iterator[Any]:
        """Iterate over the blocks; in a forward pass, with what puts its crossing in place."""
        blocks, crossing = list(self._modules.values()), _UNDER_WAY.get()
        return iter(blocks) if crossing is None else self._called(crossing, blocks)

    def _called(self, crossing: Crossing, blocks: list[Any]) -> Iterator[Callable[..., Any]]:
        if self._begins:
            first, *blocks = blocks
            yield partial(crossing.enter, first)
        yield from blocks
        if self._ends:
            yield crossing.leave
            raise CutReached  # here, not in a block: it may be called by gradient checkpointing


def cut(transformer: nn.Module, family: Family, gang: Gang) -> None:
    """Leave a transformer only the blocks of this member's stage.

    Args:
        transformer: whole; on the meta device it takes no memory.
        family: of the model.
        gang: whose member this process is.
    """
    lists = {name: list(getattr(transformer, name)) for name in family.blocks}
    run = runs_of([_bytes(block) for own in lists.values() for block in own], gang)[gang.stage]
    first = 0
    for name, blocks in lists.items():
        numbers = range(first, first + len(blocks))
        first = numbers.stop
        kept = {str(n - numbers.start): blocks[n - numbers.start] for n in numbers if n in run}
        begins = run.start > 0 and run.start in numbers
        own = StageBlocks(kept, begins=begins, ends=run.stop in numbers)
        setattr(transformer, name, own)


def runs_of(sizes: Sequence[int], gang: Gang) -> list[range]:
    """Return the blocks of each stage of a gang: those that the config says, or else equal parts.

    Args:
        sizes: of each block, in bytes.
        gang: with at most as many stages as there are blocks.
    """
    ends = [sum(gang.stage_blocks[: n + 1]) for n in range(len(gang.stage_blocks))]
    if not ends:
        ends = list(_equal(tuple(sizes), gang.stages))
    return [range(first, end) for first, end in pairwise([0, *ends])]


def _equal(sizes: tuple[int, ...], stages: int) -> tuple[int, ...]:
    """Return the ends of runs of which the largest is as small as can be."""

    @cache
    def best(end: int, count: int) -> tuple[int, tuple[int, ...]]:
        if count == 1:
            return sum(sizes[:end]), (end,)
        found = []
        for start in range(count - 1, end):
            most, ends = best(start, count - 1)
            found.append((max(most, sum(sizes[start:end])), (*ends, end)))
        return min(found)

    return best(len(sizes), stages)[1]


def _bytes(block: nn.Module) -> int:
    return sum(parameter.nbytes for parameter in block.parameters())
