"""Cut a transformer into stages: runs of its blocks, each held by one member of a share.

A stage is the stock transformer of diffusers with its own blocks only. What comes before the blocks
(embedders of patches, time and text, rotary embeddings, masks) is small and depends on what every
member has: each stage computes it for itself. So only the streams cross a cut, which a block is
given by the one before it. A forward pass of a stage that is not the last ends at its cut.

Cuts that are coded are so where all blocks are on one device, too.
"""

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from digen_core.config.families import Family
from digen_core.gang.codecs import UNCODED, CodedCuts
from digen_core.gang.members import ALONE, Gang
from digen_core.gang.runs import runs_of


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

        def received(streams: Sequence[Tensor]) -> list[Tensor]:
            if not self.came:  # at every cut streams are like those that come to the first block
                found = self._receive(streams)
                self.came = [tensor.requires_grad_(torch.is_grad_enabled()) for tensor in found]
            return self.came

        return _called_with(received, self._streams, block, *arguments, **parameters)

    def leave(
        self, hidden_states: Tensor, encoder_hidden_states: Tensor | None = None, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor | None]:
        """Keep what the next stage's first block would be given: streams come before all else."""
        streams = hidden_states, encoder_hidden_states
        own = zip(streams, self._streams, strict=False)
        self.left = [tensor for tensor, _ in own if tensor is not None]
        return streams


def _called_with(
    change: Callable[[Sequence[Tensor]], Sequence[Tensor]],
    streams: Sequence[str],
    block: nn.Module,
    *arguments: Any,
    **parameters: Any,
) -> Any:
    """Call a block with other streams than it is given: what ``change`` makes of those."""
    bound = inspect.signature(block.forward).bind(*arguments, **parameters)
    given = [name for name in streams if bound.arguments[name] is not None]
    changed = change([bound.arguments[name] for name in given])
    bound.arguments.update(zip(given, changed, strict=True))
    return block(*bound.args, **bound.kwargs)


_UNDER_WAY: ContextVar[Crossing | None] = ContextVar("crossing", default=None)


class RunOfBlocks(nn.ModuleList):
    """The blocks of a list that are on this device, under the names that they have in the whole."""

    cuts: CodedCuts  # of which some may be between the blocks
    run: range  # numbers of the device's blocks, of this list and others

    def __init__(
        self, blocks: Sequence[nn.Module], numbers: range, run: range, streams: Sequence[str]
    ) -> None:
        """Keep those of a run.

        Args:
            blocks: of the whole list.
            numbers: theirs in the transformer.
            run: numbers of those that this device has, of this list and others.
            streams: what crosses cuts, as the parameters of blocks are called.
        """
        super().__init__()
        self._modules.update(
            {str(place): blocks[place] for place, n in enumerate(numbers) if n in run}
        )
        self.cuts, self.run = UNCODED, run
        self._first, self._streams = numbers.start, streams
        self._ends = run.stop in numbers

    def __iter__(self) -> Iterator[Any]:
        """Iterate over the blocks; in a forward pass, with what puts its crossing in place."""
        crossing = _UNDER_WAY.get()
        for name, block in self._modules.items():
            number = self._first + int(name)
            if crossing is not None and number == self.run.start > 0:
                yield partial(crossing.enter, block)
            elif number in self.cuts.blocks:
                yield partial(_called_with, partial(self._crossed, number), self._streams, block)
            else:
                yield block
        if crossing is not None and self._ends:
            yield crossing.leave
            raise CutReached  # here, not in a block: it may be called by gradient checkpointing

    def _crossed(self, number: int, streams: Sequence[Tensor]) -> list[Tensor]:
        """Return the streams behind a cut between two blocks of this device."""
        codecs = self.cuts.at(number)
        return [codecs.crossed(stream) for stream in streams]


def cut(transformer: nn.Module, family: Family, gang: Gang) -> None:
    """Leave a transformer only the blocks of this member's stage: all of them, if there is one.

    Args:
        transformer: whole; on the meta device it takes no memory.
        family: of the model.
        gang: whose member this process is.
    """
    lists = {name: list(getattr(transformer, name)) for name in family.blocks}
    sizes = [_bytes(block) for own in lists.values() for block in own]
    run = runs_of(sizes, gang.stages, gang.stage_blocks)[gang.stage]
    first = 0
    for name, blocks in lists.items():
        numbers = range(first, first + len(blocks))
        first = numbers.stop
        setattr(transformer, name, RunOfBlocks(blocks, numbers, run, family.streams))


def code(transformer: nn.Module, family: Family, cuts: CodedCuts) -> None:
    """Have the streams be coded at cuts, of a transformer or of a stage of it."""
    if not cuts.blocks:
        return
    lists = [getattr(transformer, name) for name in family.blocks]
    if not isinstance(lists[0], RunOfBlocks):
        cut(transformer, family, ALONE)
        lists = [getattr(transformer, name) for name in family.blocks]
    for blocks in lists:
        blocks.cuts = cuts


def run_of(transformer: nn.Module, family: Family) -> range:
    """Return the numbers of the blocks that a stage has."""
    run: range = getattr(transformer, next(iter(family.blocks))).run
    return run


def _bytes(block: nn.Module) -> int:
    return sum(parameter.nbytes for parameter in block.parameters())
