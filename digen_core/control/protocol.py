"""The words of the controller: what work is, what happened, what to do.

Events say what happened, instructions what to do. The flow on Dask workers, and every other body
that a schedule runs in, speaks only these.
"""

from dataclasses import dataclass
from typing import Literal

Role = Literal["rollout", "trainer"]


@dataclass(frozen=True, slots=True)
class Device:
    """A worker that holds a model."""

    name: str
    roles: frozenset[Role]


@dataclass(frozen=True, slots=True, order=True)
class Fragment:
    """Samples of one group that are denoised together in one batch."""

    iteration: int
    group: int
    index: int
    first_sample: int
    num_samples: int

    @property
    def samples(self) -> range:
        """Indices of the samples in their group."""
        return range(self.first_sample, self.first_sample + self.num_samples)


@dataclass(frozen=True, slots=True, order=True)
class PairBlock:
    """Pairs of one trained step: rows [first_row, first_row + num_rows) of a fragment."""

    fragment: Fragment
    step: int
    first_row: int
    num_rows: int


@dataclass(frozen=True, slots=True)
class Pack:
    """Pairs of one forward and backward. ``index`` counts the packs of an iteration."""

    iteration: int
    index: int
    blocks: tuple[PairBlock, ...]

    @property
    def num_pairs(self) -> int:
        """How many (sample, step) pairs it holds."""
        return sum(block.num_rows for block in self.blocks)


# --- events -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class VersionLoaded:
    """A device acknowledged that it holds this policy version."""

    device: str
    version: int


@dataclass(frozen=True, slots=True)
class IterationStarted:
    """A new round of prompts may begin; these steps of its trajectories are noisy and trained."""

    iteration: int
    trained_steps: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class FragmentGenerated:
    """All denoising steps of a fragment are done."""

    fragment: Fragment


@dataclass(frozen=True, slots=True)
class FragmentScored:
    """The rewards of a fragment are known."""

    fragment: Fragment


@dataclass(frozen=True, slots=True)
class AdvantagesComputed:
    """Advantages of these groups exist; ``skipped`` have equal rewards and carry no signal."""

    groups: tuple[int, ...]
    skipped: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PackTrained:
    """A pack's gradient is added to its device's sum."""

    pack: Pack


@dataclass(frozen=True, slots=True)
class GradientReduced:
    """The devices' sums are one gradient."""


@dataclass(frozen=True, slots=True)
class Stepped:
    """The optimizer made this version."""

    version: int


Event = (
    VersionLoaded
    | IterationStarted
    | FragmentGenerated
    | FragmentScored
    | AdvantagesComputed
    | PackTrained
    | GradientReduced
    | Stepped
)

# --- instructions -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Encode:
    """Embed the prompt of a group."""

    group: int
    device: str


@dataclass(frozen=True, slots=True)
class Generate:
    """Run denoising steps [first_step, end_step) of a fragment with one policy version."""

    fragment: Fragment
    first_step: int
    end_step: int
    version: int
    device: str


@dataclass(frozen=True, slots=True)
class Score:
    """Decode a finished fragment and reward it."""

    fragment: Fragment
    device: str


@dataclass(frozen=True, slots=True)
class ComputeAdvantages:
    """Centre and scale the rewards of these groups."""

    groups: tuple[int, ...]
    device: str


@dataclass(frozen=True, slots=True)
class Train:
    """Add a pack's gradient to the sum of this device."""

    pack: Pack
    version: int
    device: str


@dataclass(frozen=True, slots=True)
class Reduce:
    """Add up the sums of these devices."""

    devices: tuple[str, ...]
    device: str


@dataclass(frozen=True, slots=True)
class Step:
    """Make version + 1 from version and the reduced gradient."""

    version: int
    device: str


@dataclass(frozen=True, slots=True)
class Push:
    """Load a version on a device, which acknowledges it with the content's hash."""

    version: int
    device: str


@dataclass(frozen=True, slots=True)
class FinishIteration:
    """Every device holds the new version; ``updated`` is false if no group carried a signal."""

    iteration: int
    updated: bool


Instruction = (
    Encode | Generate | Score | ComputeAdvantages | Train | Reduce | Step | Push | FinishIteration
)
