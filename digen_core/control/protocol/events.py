"""Events: what happened, told to the controller."""

from dataclasses import dataclass

from digen_core.control.costs import Costs
from digen_core.control.protocol.parts import Batch, Device, Fragment, Pack, Role
from digen_core.control.schedule import UNMIXED, WHOLE, Deal, Mixing, OwnSteps, StaleGroups


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
    ``stale_limit`` says how much may begin on older versions; None: what the schedule lets.
    ``group_steps``, if given, says how many steps the trajectories of each group have, also of
    those groups; then ``own_steps`` is given, too.
    """

    iteration: int
    trained_steps: tuple[int, ...]
    group_costs: tuple[float, ...] = ()
    mixing: Mixing = UNMIXED
    deal: Deal = WHOLE
    own_steps: OwnSteps = ()
    stale_limit: StaleGroups | None = None
    group_steps: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class BatchPaused:
    """A batch stopped at a step boundary: ``next_step`` is the first one that is not done."""

    batch: Batch
    next_step: int


@dataclass(frozen=True, slots=True)
class BatchLate:
    """A batch's steps take longer than was predicted, by ``LATE`` or more, and some are left."""

    batch: Batch
    pace: float  # times as long


@dataclass(frozen=True, slots=True)
class BatchGenerated:
    """All denoising steps of a batch are done."""

    batch: Batch


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

    Or a group of candidates, and that of the samples that stand for some of them. All groups that
    were asked about wait for the new ones, and are asked about again.
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
    | BatchPaused
    | BatchLate
    | BatchGenerated
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
