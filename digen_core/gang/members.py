"""A gang: worker processes that are one device, seen from one of its members.

Its members form a mesh [shares, stages, context_parallel] of ranks in order. Samples are dealt over
the shares; the members of a share have the same samples, whose tokens they deal (Ulysses,
arXiv:2309.14509), or of whose transformer each holds a stage. A device of one worker is a gang of
one, for which nothing here communicates.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from digen_core.config.parallel import ParallelConfig

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Gang:
    """One member's view of its gang.

    Methods that say so are collective: every member calls them, in the same order, over the default
    process group.
    """

    rank: int = 0
    size: int = 1
    context_parallel: int = 1  # members that deal the tokens of the same samples
    shards_weights: bool = False  # each member holds a part of the weights
    stages: int = 1  # members that hold the blocks of one transformer together
    stage_blocks: tuple[int, ...] = ()  # of each stage; empty: equal parts

    @classmethod
    def of(cls, config: ParallelConfig) -> Self:
        """Return the gang of this process's default group; without one, a gang of one."""
        if not dist.is_initialized():
            return cls()
        rank, size = dist.get_rank(), dist.get_world_size()
        return cls(
            rank,
            size,
            config.degree_of(size),
            config.shard_weights and size > 1,
            config.stages_of(size),
            config.blocks_of(size),
        )

    @property
    def is_leader(self) -> bool:
        """Whether this member takes the gang's tasks and answers for it."""
        return self.rank == 0

    @property
    def share_size(self) -> int:
        """Number of members that have the same samples."""
        return self.stages * self.context_parallel

    @property
    def num_shares(self) -> int:
        """Number of shares in which samples are dealt."""
        return self.size // self.share_size

    @property
    def share(self) -> int:
        """Index of this member's share."""
        return self.rank // self.share_size

    @property
    def stage(self) -> int:
        """Index of this member's stage."""
        return self.rank // self.context_parallel % self.stages

    @property
    def computes_together(self) -> bool:
        """Whether a forward pass of one member needs the others': then nobody may leave one out."""
        return self.shards_weights or self.share_size > 1

    def own(self, num_rows: int) -> slice:
        """Return which of some samples are this member's: a slice, empty if there are too few."""
        first, end = (share * num_rows // self.num_shares for share in (self.share, self.share + 1))
        return slice(first, end)

    def computed(self, num_rows: int) -> slice:
        """Return which of some samples this member computes: its own, or without any the first.

        The first does not count then; but every member does the same, as passes that need the
        others must.
        """
        return self.own(num_rows) if self.has_own(num_rows) else slice(0, 1)

    def has_own(self, num_rows: int) -> bool:
        """Say whether some of so many samples are this member's own."""
        return bool(range(num_rows)[self.own(num_rows)])

    def counts(self, num_rows: int) -> bool:
        """Say whether what this member makes of samples counts: no other of its share says it."""
        return self.has_own(num_rows) and self.rank % self.share_size == 0

    def any(self, flag: bool) -> bool:
        """Say whether a flag is set on any member (collective)."""
        if self.size == 1:
            return flag
        found = torch.tensor([flag], dtype=torch.int32)
        dist.all_reduce(found, dist.ReduceOp.MAX)
        return bool(found)

    def gather(self, made: Sequence[T]) -> list[T]:
        """Return, on the leader, what all members made, in their order; else nothing (collective).

        It is pickled: tensors in it should be on the CPU.
        """
        if self.size == 1:
            return list(made)
        found: list[Any] | None = [None] * self.size if self.is_leader else None
        dist.gather_object(list(made), found)
        return [each for part in found or () for each in part]

    def everyone(self, made: T) -> list[T]:
        """Return, on every member, what each made, in their order (collective); as `gather`."""
        if self.size == 1:
            return [made]
        found: list[Any] = [None] * self.size
        dist.all_gather_object(found, made)
        return found

    def add_up(self, tensors: Sequence[Tensor]) -> None:
        """Replace tensors by their sums over all members (collective)."""
        if self.size == 1:
            return
        for tensor in tensors:
            dist.all_reduce(tensor)


ALONE = Gang()
"""The gang of a device that is one worker."""
