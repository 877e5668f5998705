"""Instructions: what to do, decided by the controller."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from digen_core.control.protocol.parts import Batch, Fragment, Pack, Role


@dataclass(frozen=True, slots=True)
class Generate:
    """Run denoising steps [first_step, end_step) of a batch with one policy version."""

    batch: Batch
    first_step: int
    end_step: int
    version: int
    device: str


@dataclass(frozen=True, slots=True)
class Pause:
    """Stop a batch at the next step boundary.

    It answers with BatchPaused, or with BatchGenerated if its last step had begun.
    """

    batch: Batch
    device: str


@dataclass(frozen=True, slots=True)
class Score:
    """Decode a finished fragment, where it was generated, and reward it."""

    fragment: Fragment
    device: str


@dataclass(frozen=True, slots=True)
class ComputeAdvantages:
    """Centre and scale the rewards of these groups; or choose among candidates, if it is theirs."""

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

    def pulled(self, sites: Mapping[str, str]) -> list[tuple[str, ...]]:
        """Return whose sums the device pulls: together those that the first of them adds up before.

        So the sums of another site cross a link as one.

        Args:
            sites: of the devices; "" where it is not known.
        """
        home, at = sites[self.device], defaultdict[str, list[str]](list)
        for name in self.devices:
            if name != self.device:
                at[sites[name]].append(name)
        found = list[tuple[str, ...]]()
        for site, names in at.items():
            if site == home or "" in (site, home):
                found += [(name,) for name in names]
            else:
                found.append(tuple(names))
        return found


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
