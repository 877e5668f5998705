"""Transformers with a few of their equal blocks: what all would take, of which each takes as much.

Of a run of equal blocks the first and the last may differ from the others in what autograd leaves
out: the gradient of what came in, and of what goes nowhere. Each one between them adds as much as
any other. So what m blocks take is what 2 take, and m - 2 times what a third adds: FLOPs, and bytes
at the peak of a pass, which are those that autograd keeps of each block and those of one at work.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from typing import Final

from torch import nn

from digen_core.config.families import FAMILIES
from digen_core.models.pipeline.policy import PipelinePolicy

FEWEST: Final = 2
"""Blocks of a run that are measured in any case."""


def with_few_blocks(
    policy: PipelinePolicy,
    measured: Callable[[], int],
    *,
    first_differs: bool = False,
) -> int:
    """Return what ``measured`` would return of a policy with all its blocks, of few of them.

    Args:
        policy: whose transformers lack blocks while ``measured`` is called.
        measured: a quantity that is linear in the number of equal blocks, from ``FEWEST`` on.
        first_differs: the first call counts what it leaves behind for those after it, too, such as
            tables of positions.
    """
    names = FAMILIES[policy.config.family].blocks
    lists = [getattr(transformer, name) for transformer in policy.transformers for name in names]
    runs = [list(run) for blocks in lists for _, run in groupby(blocks, _kind_of)]
    others = {block for run in runs for block in run[FEWEST:]}
    with _without(others, lists):
        total = few = measured()
        if first_differs and others:
            few = measured()
    for run in runs:
        if more := run[FEWEST:]:
            with _without(others - {more[0]}, lists):
                total += len(more) * (measured() - few)
    return total


def _kind_of(block: nn.Module) -> object:
    """Return what blocks that compute the same have in common."""
    shapes = [(name, tuple(own.shape), own.requires_grad) for name, own in block.named_parameters()]
    return type(block), shapes


@contextmanager
def _without(left_out: set[nn.Module], lists: Sequence[nn.ModuleList]) -> Iterator[None]:
    """Let lists of blocks lack some, while the body runs."""
    all_of = [list(blocks) for blocks in lists]
    try:
        for blocks, own in zip(lists, all_of, strict=True):
            _fill(blocks, [block for block in own if block not in left_out])
        yield
    finally:
        for blocks, own in zip(lists, all_of, strict=True):
            _fill(blocks, own)


def _fill(blocks: nn.ModuleList, own: list[nn.Module]) -> None:
    """Give a list these blocks: it stays the object that others know."""
    blocks._modules.clear()
    blocks.extend(own)
