"""The config table ``parallel``: how the workers of a gang share their work.

Importing this module must not import torch.
"""

from math import gcd
from typing import Annotated, Final

from pydantic import Field

from digen_core.strict import AtMost, Strict

MEMBERS: Final = AtMost(64, "the members of a gang are one device")

Dealt = Annotated[tuple[int, ...], Field(min_length=2, max_length=MEMBERS.most)]
"""Blocks of each stage."""


class ParallelConfig(Strict):
    """How the members of a gang share samples, tokens, blocks and weights."""

    context_parallel: Annotated[int, MEMBERS] = Field(1, ge=1)
    """Members that compute the same samples, each some of their tokens (Ulysses), where one sample
    does not fit one GPU or takes too long; the other members take other samples. In a gang whose
    size it does not divide it is the greatest common divisor of both."""

    shard_weights: bool = False
    """Whether each member holds a part of the transformer's weights (FSDP2), for models that do not
    fit one GPU: some device of the run is a gang. One that is a single worker holds all of them."""

    stages: Annotated[int, MEMBERS] = Field(1, ge=1)
    """Members that hold the transformer's blocks together, each a run of them, for models that do
    not fit one GPU: samples flow through the stages in portions, so that all of them work. It
    must divide the size of each gang; a device that is one worker holds all blocks."""

    stage_blocks: tuple[int, ...] = ()
    """Blocks of each stage, the first stage's first; empty: runs that weigh as equally as blocks
    do."""

    stages_by_size: tuple[Dealt, ...] = ()
    """Blocks of each stage in gangs that have as many members as there are numbers, such as
    [[29, 28], [19, 19, 19]]: where gangs of some sites need other stages than those of others.
    Gangs of other sizes are as ``stages`` and ``stage_blocks`` say."""

    @property
    def has_stages(self) -> bool:
        """Whether any gang may hold the blocks in stages."""
        return self.stages > 1 or bool(self.stages_by_size)

    def blocks_of(self, size: int) -> tuple[int, ...]:
        """Return the blocks of each stage in a gang of some size; empty: equal runs."""
        return next((own for own in self.stages_by_size if len(own) == size), self.stage_blocks)

    def stages_of(self, size: int) -> int:
        """Return the members that hold the blocks together, in a gang of some size."""
        if any(len(own) == size for own in self.stages_by_size):
            return size
        return self.stages if size > 1 else 1

    def degree_of(self, size: int) -> int:
        """Return the members that share the tokens of a sample, in a gang of some size."""
        return gcd(self.context_parallel, size)
