"""One device as the controller knows it: what it is ready for, holds, and was told to do."""

from copy import copy
from dataclasses import dataclass, field

from digen_core.control.protocol import Batch, Device, Generate, Pack, Role, Switch, Train

Work = Generate | Train | Switch


@dataclass
class DeviceState:
    """One device. Whoever changes an attribute has the fleet ``file`` it."""

    device: Device
    home: Role
    #: What it is ready for once its queue is done: never a role that it does not have, but trainers
    #: that help and rollout devices that assist have both.
    mode: Role
    #: Devices that came later have a higher one.
    number: int
    #: Versions it holds: of those that were made, none that is too old to train on.
    loaded: frozenset[int] = frozenset()
    #: Versions of whose train state it has a copy: none that is too old to train on.
    copied: frozenset[int] = frozenset()
    #: Told to do and not done, in order: what iterations have under way here, and turns to a role.
    queue: list[Work] = field(default_factory=list)
    #: Packs of its samples, without TSP, to train next: of the oldest iteration, as under way too.
    packs: list[Pack] = field(default_factory=list)
    #: Pairs of the mean size that fit into its memory; None: not yet found out.
    largest_pack: float | None = None
    #: Predicted, on the fleet's clock of training.
    trains_until: float = 0.0
    #: Told to pause the batch that it generates: there is one.
    pausing: bool = False
    #: The last batch that was late here, until another one is not; and by how many times.
    late: Batch | None = None
    pace: float = 1.0
    may_generate: bool = False
    may_train: bool = False
    #: It is to leave, and gets no work any more.
    leaving: bool = False

    @property
    def name(self) -> str:
        """The device's name."""
        return self.device.name

    @property
    def newest(self) -> int:
        """The newest version that it holds; -1 before the first."""
        return max(self.loaded, default=-1)

    @property
    def generating(self) -> Generate | None:
        """The first thing that it was told to do, if that is to generate."""
        do = self.queue[0] if self.queue else None
        return do if isinstance(do, Generate) else None

    def copy(self) -> "DeviceState":
        """Return a state that changes by itself."""
        state = copy(self)
        state.queue, state.packs = list(self.queue), list(self.packs)
        return state
