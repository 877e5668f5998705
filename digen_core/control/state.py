"""State of a controller: the devices, the open iterations, and the versions.

The parts of a controller share it: what comes back from devices (`results.py`), the updates
(`updates.py`), and the devices that come and go (`membership.py`).
"""

from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field

from digen_core.control.devices.device_state import DeviceState, Work
from digen_core.control.devices.fleet import Fleet
from digen_core.control.dispatch import Dispatcher
from digen_core.control.generation import UsableVersions
from digen_core.control.iteration import Iteration
from digen_core.control.layout import Layout
from digen_core.control.protocol import FinishIteration, IterationOffered
from digen_core.control.pushes import Copies, Pushes
from digen_core.control.schedule import Schedule, Workload
from digen_core.control.snapshot import IterationSnapshot, Snapshot


class ControllerError(RuntimeError):
    """An event that cannot happen in the controller's state: a bug in whoever drives it."""


@dataclass(repr=False)
class ControllerState:
    """What a controller knows. It is changed while an event is handled only."""

    workload: Workload
    schedule: Schedule
    fleet: Fleet
    #: On which work begins: no device holds, no group began on and no event names a newer one.
    #: As many generate as iterations may be open: of no other one a group of those began.
    versions: UsableVersions
    #: Of the iteration that may be offered next: one more than the last of all those below.
    next_index: int
    #: Iterations that wait to begin, in order: only as long as as many are open as may be.
    offered: deque[IterationOffered] = field(default_factory=deque)
    #: Open, the oldest first, which alone has packs. Their indices come before those offered.
    iterations: deque[Iteration] = field(default_factory=deque)
    #: Over, but for devices that do not hold the version beside it. Theirs come before those.
    finishing: deque[tuple[FinishIteration, int]] = field(default_factory=deque)
    dispatcher: Dispatcher = field(init=False)
    pushes: Pushes = field(init=False)
    copies: Copies = field(init=False)

    def __post_init__(self) -> None:
        self.dispatcher = Dispatcher(self.fleet, self.workload, self.schedule)
        self.pushes = Pushes(self.fleet, self.schedule.pulls_at_once)
        self.copies = Copies(self.fleet, are_made=self.schedule.copies_state)

    @classmethod
    def restored(cls, snapshot: Snapshot) -> "ControllerState":
        """Return the state of which a snapshot was taken."""
        state = cls(
            snapshot.workload,
            snapshot.schedule,
            Fleet.restored(snapshot.fleet, snapshot.workload, snapshot.costs),
            UsableVersions(snapshot.version, snapshot.generating),
            snapshot.next_iteration,
            deque(snapshot.offered),
            deque(iteration.restored() for iteration in snapshot.iterations),
            deque(snapshot.finishing),
        )
        state.pushes.restore(snapshot.pushes)
        state.copies.restore(snapshot.copies)
        return state

    def snapshot(self) -> Snapshot:
        """Return what it would take to go on from here."""
        return Snapshot(
            workload=self.workload,
            schedule=self.schedule,
            costs=self.fleet.costs,
            version=self.version,
            generating=self.versions.generating,
            next_iteration=self.next_index,
            fleet=self.fleet.snapshot(),
            offered=tuple(self.offered),
            iterations=tuple(map(IterationSnapshot.of, self.iterations)),
            finishing=tuple(self.finishing),
            pushes=self.pushes.snapshot(),
            copies=self.copies.snapshot(),
        )

    @property
    def layout(self) -> Layout:
        """The schedule's."""
        return self.schedule.layout

    @property
    def version(self) -> int:
        """The newest version."""
        return self.versions.newest

    def open(self, index: int) -> Iteration:
        """Return an iteration that is open.

        Raises:
            ControllerError: it is not.
        """
        for iteration in self.iterations:
            if iteration.index == index:
                return iteration
        raise self.error(f"iteration {index} is not open")

    def done(self, work: Work) -> None:
        """Take work back that a device has done.

        Raises:
            ControllerError: it was not told to.
        """
        try:
            self.fleet.take_back(self.fleet[work.device], work)
        except (KeyError, ValueError):
            raise self.error(f"{work} was not under way") from None

    def begun_versions(self) -> set[int]:
        """Return the versions on which groups of open iterations began: each ends on its own."""
        return {v for iteration in self.iterations for v in iteration.queue.versions.values()}

    def needed_versions(self) -> set[int]:
        """Return those, and the one on which groups begin."""
        return self.begun_versions() | {self.versions.policy}

    def survives(self, lost: Collection[str]) -> bool:
        """Say whether the run can go on without devices: somebody has the optimizer's state."""
        return self.copies.survive(lost, self.needed_versions() | {self.version})

    def is_busy(self, device: DeviceState) -> bool:
        """Say whether a device was told to do something, or others to do something with it."""
        name = device.name
        return bool(device.queue) or self.pushes.involve(name) or self.copies.involve(name)

    def error(self, what: str) -> ControllerError:
        """Return an error that says what does not fit, and the state."""
        return ControllerError(f"{what}: {self!r}")

    def __repr__(self) -> str:
        queues = {device.name: device.queue for device in self.fleet if device.queue}
        return (
            f"Controller(layout={self.layout.name}, version={self.version}, "
            f"iterations={list(self.iterations)}, {queues=}, finishing={list(self.finishing)})"
        )
