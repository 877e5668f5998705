"""The words of the controller: what work is, what happened, what to do.

Events say what happened, instructions what to do. The flow on Dask workers, the simulator and the
property tests speak only these.
"""

from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from digen_core.control.costs import Costs
from digen_core.control.schedule import UNMIXED, WHOLE, Deal, Mixing, OwnSteps

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
    """Samples of one group that are denoised together in one batch."""

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


# --- events -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DeviceJoined:
    """A device may be used from now on; it holds no version yet."""

    device: Device


@dataclass(frozen=True, slots=True)
class DevicesLost:
    """Devices are gone with everything they held: trajectories, gradient sums, versions.

    Those that vanish together (a host, a switch) come in one event: what one of them had is never
    given to another of them. With the holder of the optimizer's state goes every push, reduction
    and copy that is under way.
    """

    devices: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DeviceLeaving:
    """A device is to leave: it gets no work any more, and goes when nobody needs what it has."""

    device: str


@dataclass(frozen=True, slots=True)
class VersionLoaded:
    """A device acknowledged that it holds this policy version."""

    device: str
    version: int


@dataclass(frozen=True, slots=True)
class PushFailed:
    """A device could not load a version: its source is gone, or what it sent arrived damaged."""

    device: str
    version: int
    source: str


@dataclass(frozen=True, slots=True)
class Switched:
    """A device is ready for the work of this role."""

    device: str
    role: Role


@dataclass(frozen=True, slots=True)
class IterationOffered:
    """The next round of prompts is known; it begins as soon as the layout lets it.

    ``trained_steps`` of its trajectories are noisy and trained. ``group_costs``, if given, say what
    a sample of each group costs, in samples of the mean size (mixed resolutions), also of those
    that may replace others; else all cost the same. ``deal`` says which update trains what,
    ``own_steps``, if given, which of the trained steps are a sample's own, also of those groups.
    ``most_stale`` groups may begin on an older version; None: as many as the schedule lets.
    ``group_steps``, if given, says how many steps the trajectories of each group have, also of
    those groups; then ``own_steps`` is given, too.
    """

    iteration: int
    trained_steps: tuple[int, ...]
    group_costs: tuple[float, ...] = ()
    mixing: Mixing = UNMIXED
    deal: Deal = WHOLE
    own_steps: OwnSteps = ()
    most_stale: int | None = None
    group_steps: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class FragmentPaused:
    """A fragment stopped at a step boundary: ``next_step`` is the first one that is not done."""

    fragment: Fragment
    next_step: int


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
    """Advantages of these groups exist; ``skipped`` have equal rewards and carry no signal.

    ``chosen``, if given, names the samples of each group that are trained (best-of-n), in the order
    of ``groups``; else all are.
    """

    iteration: int
    groups: tuple[int, ...]
    skipped: tuple[int, ...] = ()
    chosen: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class GroupsReplaced:
    """In place of advantages: (group without signal, group of another prompt that takes its place).

    All groups that were asked about wait for the new ones, and are asked about again.
    """

    iteration: int
    groups: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class PackTrained:
    """A pack's gradient is added to its device's sum."""

    pack: Pack


@dataclass(frozen=True, slots=True)
class PackTooLarge:
    """A device ran out of memory in a pack and added nothing."""

    pack: Pack


@dataclass(frozen=True, slots=True)
class CostsUpdated:
    """The cost model learnt from what was measured."""

    costs: Costs


@dataclass(frozen=True, slots=True)
class GradientReduced:
    """The sums of all devices that were to be reduced are one gradient, of the current update.

    Of a reduction nothing is heard once one of its devices is lost.
    """

    iteration: int


@dataclass(frozen=True, slots=True)
class ReduceFailed:
    """A device's sum could not be had: the device will be found lost."""

    iteration: int


@dataclass(frozen=True, slots=True)
class Stepped:
    """The optimizer made this version."""

    version: int


@dataclass(frozen=True, slots=True)
class UpdateSkipped:
    """This version was not made: the update's loss or gradient is NaN or infinite."""

    iteration: int
    version: int


@dataclass(frozen=True, slots=True)
class StateCopied:
    """A device has a copy of the optimizer's state of this version."""

    device: str
    version: int


Event = (
    DeviceJoined
    | DevicesLost
    | DeviceLeaving
    | VersionLoaded
    | PushFailed
    | Switched
    | IterationOffered
    | FragmentPaused
    | FragmentGenerated
    | FragmentScored
    | AdvantagesComputed
    | GroupsReplaced
    | PackTrained
    | PackTooLarge
    | CostsUpdated
    | GradientReduced
    | ReduceFailed
    | Stepped
    | UpdateSkipped
    | StateCopied
)

# --- instructions -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Generate:
    """Run denoising steps [first_step, end_step) of a fragment with one policy version."""

    fragment: Fragment
    first_step: int
    end_step: int
    version: int
    device: str


@dataclass(frozen=True, slots=True)
class Pause:
    """Stop a fragment at the next step boundary.

    It answers with FragmentPaused, or with FragmentGenerated if its last step had begun.
    """

    fragment: Fragment
    device: str


@dataclass(frozen=True, slots=True)
class Score:
    """Decode a finished fragment, where it was generated, and reward it."""

    fragment: Fragment
    device: str


@dataclass(frozen=True, slots=True)
class ComputeAdvantages:
    """Centre and scale the rewards of these groups."""

    iteration: int
    groups: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Train:
    """Add a pack's gradient, taken at ``version``, to the sum of this device."""

    pack: Pack
    version: int
    device: str


@dataclass(frozen=True, slots=True)
class Reduce:
    """Add up the sums of these devices for an iteration's current update."""

    iteration: int
    devices: tuple[str, ...]
    device: str


@dataclass(frozen=True, slots=True)
class Step:
    """Make version + 1 from version and the reduced gradient of an iteration."""

    iteration: int
    version: int
    device: str


@dataclass(frozen=True, slots=True)
class CopyState:
    """Have the optimizer's state of a version on a device, too; ``source`` is the holder."""

    version: int
    device: str
    source: str


@dataclass(frozen=True, slots=True)
class Push:
    """Load a version on a device beside those it holds; it answers with the content's hash.

    It pulls the version from ``source``, a device that holds it: from itself if it made it.
    """

    version: int
    device: str
    source: str


@dataclass(frozen=True, slots=True)
class Switch:
    """Make a device ready for the work of another role."""

    device: str
    role: Role


@dataclass(frozen=True, slots=True)
class Release:
    """Let a device go that was to leave: nothing is under way there, and nobody needs what it has.

    It is not answered. The first trainer that is left has the optimizer's state if this one had it.
    """

    device: str


@dataclass(frozen=True, slots=True)
class FinishIteration:
    """An iteration is over: ``updated`` is false if no update of it made a version.

    Every device holds the version that it made; iterations finish in order.
    """

    iteration: int
    updated: bool


Instruction = (
    Generate
    | Pause
    | Score
    | ComputeAdvantages
    | Train
    | Reduce
    | Step
    | CopyState
    | Push
    | Switch
    | Release
    | FinishIteration
)
