"""Parts of events and instructions: devices, and the work that is told apart and passed around."""

from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

Role = Literal["rollout", "trainer"]


@dataclass(frozen=True, slots=True)
class Device:
    """A worker, or a gang of workers, that holds a model.

    With both roles it generates and trains in turn.
    """

    name: str  # of the worker, or of the gang's leader
    roles: frozenset[Role]
    kind: str = "default"  # devices of one kind are equally fast
    size: int = 1  # workers of the gang
    site: str = ""  # where it is: between sites links are slow

    @property
    def followers(self) -> tuple[str, ...]:
        """Names of the workers of the gang but for its leader."""
        return followers_of(self.name, self.size)


def followers_of(leader: str, size: int) -> tuple[str, ...]:
    """Return the names of a gang's workers but for its leader."""
    return tuple(f"{leader}.{rank}" for rank in range(1, size))


@dataclass(frozen=True, slots=True, order=True)
class Fragment:
    """Samples of one group that are denoised together, and scored together."""

    iteration: int
    group: int
    index: int
    first_sample: int
    num_samples: int
    cost: float = field(default=1.0, compare=False)  # of a sample, in those of the mean size
    num_steps: int = field(default=0, compare=False)  # of its trajectories

    @property
    def samples(self) -> range:
        """Indices of the samples in their group."""
        return range(self.first_sample, self.first_sample + self.num_samples)

    @property
    def load(self) -> float:
        """Samples of the mean size that take as long at a step."""
        return self.cost * self.num_samples


@dataclass(frozen=True, slots=True, order=True)
class Batch:
    """Fragments of an iteration that are denoised together: of one cost and number of steps."""

    fragments: tuple[Fragment, ...]

    @property
    def name(self) -> str:
        """Of its first fragment, and how many others there are: "g03 f1 +2"."""
        first, *others = self.fragments
        return f"g{first.group:02d} f{first.index}" + (f" +{len(others)}" if others else "")

    @property
    def iteration(self) -> int:
        """Of its fragments."""
        return self.fragments[0].iteration

    @property
    def num_steps(self) -> int:
        """Of their trajectories."""
        return self.fragments[0].num_steps

    @property
    def num_samples(self) -> int:
        """Of all of them."""
        return sum(fragment.num_samples for fragment in self.fragments)

    @property
    def cost(self) -> float:
        """Of a sample, in those of the mean size."""
        return self.fragments[0].cost

    @property
    def load(self) -> float:
        """Samples of the mean size that take as long at a step."""
        return sum(fragment.load for fragment in self.fragments)


@dataclass(frozen=True, slots=True, order=True)
class PairBlock:
    """Pairs of one trained step: rows [first_row, first_row + num_rows) of a fragment."""

    fragment: Fragment
    step: int
    first_row: int
    num_rows: int
    update: int = 0  # of the iteration, that trains them

    @property
    def samples(self) -> range:
        """Indices of the samples in their group."""
        first = self.fragment.first_sample + self.first_row
        return range(first, first + self.num_rows)

    @property
    def load(self) -> float:
        """Pairs of the mean size that take as long."""
        return self.fragment.cost * self.num_rows


@dataclass(frozen=True)  # without slots: what follows from the blocks is counted once
class Pack:
    """Pairs of one forward and backward. ``index`` counts the packs of an iteration."""

    iteration: int
    index: int
    blocks: tuple[PairBlock, ...]

    @cached_property
    def num_pairs(self) -> int:
        """How many (sample, step) pairs it holds."""
        return sum(block.num_rows for block in self.blocks)

    @cached_property
    def load(self) -> float:
        """Pairs of the mean size that take as long."""
        return sum(block.load for block in self.blocks)

    @property
    def cost(self) -> float:
        """Of a pair, in those of the mean size."""
        return self.load / self.num_pairs
