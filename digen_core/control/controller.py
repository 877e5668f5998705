"""Who generates, scores, trains, steps and loads, and when: a state machine without I/O.

| IterationOffered -> Generate* -> BatchGenerated -> Score -> FragmentScored
|   -> ComputeAdvantages -> AdvantagesComputed -> Train* -> PackTrained -> Reduce
|   -> GradientReduced -> Step -> Stepped -> CopyState -> StateCopied
|   -> Push* -> VersionLoaded -> FinishIteration

`handle` takes what happened and returns what to do. What follows from an event is in `results.py`
(fragments, packs), `updates.py` (gradients, versions) and `membership.py` (devices that come and
go); `dispatch.py` gives work to devices, by the layout's switches (`layout.py`); all of them share
one state (`state.py`). The oldest open iteration is trained; with stale layouts later ones are
generated meanwhile.
"""

from collections.abc import Collection, Sequence

from digen_core.control.costs import Costs
from digen_core.control.devices.fleet import Fleet
from digen_core.control.generation import UsableVersions, group_order
from digen_core.control.helping import choose_helpers
from digen_core.control.invariants import check
from digen_core.control.iteration import Iteration
from digen_core.control.membership import Membership
from digen_core.control.protocol import (
    AdvantagesComputed,
    BatchGenerated,
    BatchLate,
    BatchPaused,
    CostsUpdated,
    Device,
    DeviceJoined,
    DeviceLeaving,
    DevicesLost,
    Event,
    FragmentScored,
    GradientReduced,
    GroupsReplaced,
    Instruction,
    IterationOffered,
    PackTooLarge,
    PackTrained,
    PushFailed,
    ReduceFailed,
    StateCopied,
    Stepped,
    Switch,
    Switched,
    UpdateSkipped,
    VersionLoaded,
)
from digen_core.control.results import Results
from digen_core.control.schedule import (
    Schedule,
    Workload,
    generation_costs,
    num_trained_steps,
)
from digen_core.control.snapshot import Snapshot
from digen_core.control.state import ControllerState
from digen_core.control.turns import Turns
from digen_core.control.updates import Updates


class Controller:
    """Mutated only through ``handle``."""

    def __init__(
        self,
        devices: Sequence[Device],
        workload: Workload,
        schedule: Schedule,
        costs: Costs,
        *,
        version: int = 0,
        next_iteration: int = 0,
    ) -> None:
        """Begin where a run stands: with a version that no device holds yet."""
        fleet = Fleet.of(devices, workload, costs)
        versions = UsableVersions(version, (version,))
        self._take(ControllerState(workload, schedule, fleet, versions, next_iteration))

    def _take(self, state: ControllerState) -> None:
        self._state = state
        turns = Turns(state)
        self._updates = Updates(state, turns)
        self._results = Results(state, turns, self._updates)
        self._membership = Membership(state, turns, self._updates)

    @classmethod
    def restored(cls, snapshot: Snapshot) -> "Controller":
        """Return a controller that goes on from where another one was."""
        it = cls.__new__(cls)
        it._take(ControllerState.restored(snapshot))
        return it

    def snapshot(self) -> Snapshot:
        """Return what it would take to go on from here.

        To the last bit a restored controller decides alike after ``round_anew``: it adds up anew.
        """
        return self._state.snapshot()

    def round_anew(self) -> None:
        """Take all sums anew that are kept up to date: their rounding is that of a new fleet."""
        self._state.fleet.file_all()

    @property
    def holder(self) -> str:
        """The device that holds the optimizer's state."""
        return self._state.fleet.holder

    def survives(self, lost: Collection[str]) -> bool:
        """Say whether the run can go on without devices: somebody has the optimizer's state."""
        return self._state.survives(lost)

    @property
    def leaving(self) -> list[str]:
        """The devices that are to leave and are still needed."""
        return [device.name for device in self._state.fleet.leaving()]

    def may_leave(self, name: str) -> bool:
        """Say whether others have the roles of a device, and can have the optimizer's state."""
        return self._membership.may_leave(name)

    def start(self) -> list[Instruction]:
        """Give every device the version that the run begins with."""
        return self._updates.start()

    def handle(self, event: Event) -> list[Instruction]:
        """Advance by one event and return the instructions it caused, in order.

        Raises:
            ControllerError: the event does not fit the state.
        """
        it = self._state
        instructions = [*self._on(event), *self._membership.release()]
        self._begin_offered()
        instructions += it.dispatcher.pauses(list(it.iterations), it.version)
        instructions += it.dispatcher.dispatch(
            list(it.iterations), it.versions, another_offered=bool(it.offered)
        )
        return instructions + self._updates.finished()

    def _on(self, event: Event) -> list[Instruction]:  # noqa: C901 - a table of events
        results, updates, membership = self._results, self._updates, self._membership
        match event:
            case IterationOffered():
                return self._on_offered(event)
            case BatchGenerated(batch):
                return results.on_generated(batch)
            case BatchPaused(batch, next_step):
                return results.on_paused(batch, next_step)
            case BatchLate(batch, pace):
                return results.on_late(batch, pace)
            case FragmentScored(fragment):
                return results.on_scored(fragment)
            case AdvantagesComputed():
                return results.on_advantages(event)
            case GroupsReplaced(index, groups):
                self._state.open(index).replace(dict(groups), self._state.workload)
                return []
            case PackTrained(pack):
                return results.on_trained(pack)
            case PackTooLarge(pack):
                return results.on_too_large(pack)
            case GradientReduced(index):
                return updates.on_reduced(self._state.open(index))
            case ReduceFailed():  # what is missing is trained again when its device is lost
                return []
            case Stepped(version):
                return updates.on_stepped(version)
            case UpdateSkipped(index, version):
                return updates.on_skipped(self._state.open(index), version)
            case StateCopied(device, version):
                return updates.on_copied(device, version)
            case VersionLoaded(device, version):
                return updates.on_loaded(device, version)
            case PushFailed(device, version, source):
                return updates.on_push_failed(device, version, source)
            case Switched(device, role):
                self._state.done(Switch(device, role))
                return []
            case CostsUpdated(costs):
                self._state.fleet.learn(costs)
                return []
            case DeviceJoined(device):
                return membership.on_joined(device)
            case DevicesLost(names):
                return membership.on_lost(frozenset(names))
            case DeviceLeaving(name):
                return membership.on_leaving(name)

    def _on_offered(self, offer: IterationOffered) -> list[Instruction]:
        it = self._state
        if offer.iteration != it.next_index:
            raise it.error(f"iteration {it.next_index} comes next, not {offer}")
        it.next_index += 1
        it.offered.append(offer)
        return []

    def _begin_offered(self) -> None:
        """Begin offered iterations: one, and with stale layouts those that may run ahead."""
        it = self._state
        while it.offered and len(it.iterations) <= it.schedule.num_ahead:
            offer = it.offered.popleft()
            num_steps = num_trained_steps(offer.trained_steps, offer.own_steps)
            choose_helpers(it.fleet, it.workload, it.schedule, num_steps)
            costs = generation_costs(offer.group_costs, offer.group_steps)
            order = group_order(it.workload.num_groups, costs, offer.mixing.order, offer.deal)
            it.iterations.append(Iteration.begin(offer, order, it.workload))

    def validate(self) -> None:
        """Raise AssertionError if what is kept up to date is not what it should be (for tests)."""
        self._state.fleet.validate()
        for iteration in self._state.iterations:
            iteration.validate()
        check(self.snapshot())

    def __repr__(self) -> str:
        return repr(self._state)
