"""Who generates, scores, trains, steps and loads, and when: a state machine without I/O.

| IterationOffered -> Generate* -> FragmentGenerated -> Score -> FragmentScored
|   -> ComputeAdvantages -> AdvantagesComputed -> Train* -> PackTrained -> Reduce
|   -> GradientReduced -> Step -> Stepped -> CopyState -> StateCopied
|   -> Push* -> VersionLoaded -> FinishIteration

`handle` takes what happened and returns what to do. This file keeps the iterations and versions in
order; `dispatch.py` gives work to devices, by the layout's switches (`layout.py`). The oldest open
iteration is trained; with stale layouts later ones are generated meanwhile.
"""

from collections import deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

from digen_core.control.costs import Costs
from digen_core.control.device_state import DeviceState, Work
from digen_core.control.dispatch import Dispatcher
from digen_core.control.fleet import Fleet
from digen_core.control.generation import Versions, group_order
from digen_core.control.helping import choose_helpers
from digen_core.control.invariants import check
from digen_core.control.iteration import Iteration
from digen_core.control.protocol import (
    AdvantagesComputed,
    ComputeAdvantages,
    CostsUpdated,
    Device,
    DeviceJoined,
    DeviceLeaving,
    DevicesLost,
    Event,
    FinishIteration,
    Fragment,
    FragmentGenerated,
    FragmentPaused,
    FragmentScored,
    Generate,
    GradientReduced,
    GroupsReplaced,
    Instruction,
    IterationOffered,
    Pack,
    PackTooLarge,
    PackTrained,
    PushFailed,
    Reduce,
    ReduceFailed,
    Release,
    Role,
    Score,
    StateCopied,
    Step,
    Stepped,
    Switch,
    Switched,
    Train,
    UpdateSkipped,
    VersionLoaded,
)
from digen_core.control.pushes import Copies, Pushes
from digen_core.control.recovery import lose_devices, lose_holder
from digen_core.control.schedule import (
    Schedule,
    Workload,
    generation_costs,
    num_trained_steps,
)
from digen_core.control.snapshot import IterationSnapshot, Snapshot


class ControllerError(RuntimeError):
    """An event that cannot happen in the controller's state: a bug in whoever drives it."""


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
        versions = Versions(version, (version,))
        self._take(fleet, workload, schedule, versions, next_iteration)

    def _take(
        self,
        fleet: Fleet,
        workload: Workload,
        schedule: Schedule,
        versions: Versions,
        next_index: int,
    ) -> None:
        self._workload = workload
        self._schedule = schedule
        self._layout = schedule.layout
        self._fleet = fleet
        self._dispatcher = Dispatcher(fleet, workload, schedule)
        self._pushes = Pushes(fleet, schedule.pulls_at_once)
        self._copies = Copies(fleet, are_made=schedule.copies_state)
        #: On which work begins: no device holds, no group began on and no event names a newer one.
        #: As many generate as iterations may be open: of no other one a group of those began.
        self._versions = versions
        #: Iterations that wait to begin, in order: only as long as as many are open as may be.
        self._offered: deque[IterationOffered] = deque()
        #: Open, the oldest first, which alone has packs. Their indices come before those offered.
        self._iterations: deque[Iteration] = deque()
        #: Over, but for devices that do not hold the version beside it. Theirs come before those.
        self._finishing: deque[tuple[FinishIteration, int]] = deque()
        #: Of the iteration that may be offered next: one more than the last of all those.
        self._next_index = next_index

    @classmethod
    def restored(cls, snapshot: Snapshot) -> "Controller":
        """Return a controller that goes on from where another one was."""
        it = cls.__new__(cls)
        workload, schedule = snapshot.workload, snapshot.schedule
        fleet = Fleet.restored(snapshot.fleet, workload, snapshot.costs)
        versions = Versions(snapshot.version, snapshot.generating)
        it._take(fleet, workload, schedule, versions, snapshot.next_iteration)
        it._offered.extend(snapshot.offered)
        it._iterations.extend(iteration.restored() for iteration in snapshot.iterations)
        it._finishing.extend(snapshot.finishing)
        it._pushes.restore(snapshot.pushes)
        it._copies.restore(snapshot.copies)
        return it

    def snapshot(self) -> Snapshot:
        """Return what it would take to go on from here.

        To the last bit a restored controller decides alike after ``round_anew``: it adds up anew.
        """
        return Snapshot(
            workload=self._workload,
            schedule=self._schedule,
            costs=self._fleet.costs,
            version=self._version,
            generating=self._versions.generating,
            next_iteration=self._next_index,
            fleet=self._fleet.snapshot(),
            offered=tuple(self._offered),
            iterations=tuple(map(IterationSnapshot.of, self._iterations)),
            finishing=tuple(self._finishing),
            pushes=self._pushes.snapshot(),
            copies=self._copies.snapshot(),
        )

    def round_anew(self) -> None:
        """Take all sums anew that are kept up to date: their rounding is that of a new fleet."""
        self._fleet.file_all()

    @property
    def _version(self) -> int:
        """The newest version."""
        return self._versions.newest

    @property
    def holder(self) -> str:
        """The device that holds the optimizer's state."""
        return self._fleet.holder

    def survives(self, lost: Collection[str]) -> bool:
        """Say whether the run can go on without devices: somebody has the optimizer's state."""
        return self._copies.survive(lost, self._needed_versions() | {self._version})

    @property
    def leaving(self) -> list[str]:
        """The devices that are to leave and are still needed."""
        return [device.name for device in self._fleet.leaving()]

    def may_leave(self, name: str) -> bool:
        """Say whether others have the roles of a device, and can have the optimizer's state."""
        stay = (device for device in self._fleet if not device.leaving and device.name != name)
        roles = {role for device in stay for role in device.device.roles}
        followed = name != self.holder or self._copies.can_follow()
        return followed and roles.issuperset(self._fleet[name].device.roles)

    def start(self) -> list[Instruction]:
        """Give every device the version that the run begins with."""
        return [*self._copies.of(self._version), *self._push(self._version, self._fleet)]

    def handle(self, event: Event) -> list[Instruction]:
        """Advance by one event and return the instructions it caused, in order.

        Raises:
            ControllerError: the event does not fit the state.
        """
        instructions = [*self._on(event), *self._release()]
        self._begin_offered()
        instructions += self._dispatcher.pauses(list(self._iterations), self._version)
        instructions += self._dispatcher.dispatch(
            list(self._iterations), self._versions, another_offered=bool(self._offered)
        )
        return instructions + self._finished()

    def _on(self, event: Event) -> list[Instruction]:  # noqa: C901 - a table of events
        match event:
            case IterationOffered():
                return self._on_offered(event)
            case FragmentGenerated(fragment):
                return self._on_generated(fragment)
            case FragmentPaused(fragment, next_step):
                return self._on_paused(fragment, next_step)
            case FragmentScored(fragment):
                return self._on_scored(fragment)
            case AdvantagesComputed():
                return self._on_advantages(event)
            case GroupsReplaced(index, groups):
                self._open(index).replace(dict(groups), self._workload)
                return []
            case PackTrained(pack):
                return self._on_trained(pack)
            case PackTooLarge(pack):
                return self._on_too_large(pack)
            case GradientReduced(index):
                return self._on_reduced(self._open(index))
            case ReduceFailed():  # what is missing is trained again when its device is lost
                return []
            case Stepped(version):
                return self._on_stepped(version)
            case UpdateSkipped(index, version):
                return self._on_update_skipped(self._open(index), version)
            case StateCopied(device, version):
                return self._on_copied(device, version)
            case VersionLoaded(device, version):
                return self._on_loaded(device, version)
            case PushFailed(device, version, source):
                return self._on_push_failed(device, version, source)
            case Switched(device, role):
                self._done(Switch(device, role))
                return []
            case CostsUpdated(costs):
                self._fleet.learn(costs)
                return []
            case DeviceJoined(device):
                return self._on_joined(device)
            case DevicesLost(names):
                return self._on_lost(frozenset(names))
            case DeviceLeaving(name):
                return self._on_leaving(name)

    # --- iterations -----------------------------------------------------------------------

    def _on_offered(self, offer: IterationOffered) -> list[Instruction]:
        if offer.iteration != self._next_index:
            raise ControllerError(f"iteration {self._next_index} comes next, not {offer}: {self!r}")
        self._next_index += 1
        self._offered.append(offer)
        return []

    def _begin_offered(self) -> None:
        """Begin offered iterations: one, and with stale layouts those that may run ahead."""
        while self._offered and len(self._iterations) <= self._schedule.num_ahead:
            offer = self._offered.popleft()
            num_steps = num_trained_steps(offer.trained_steps, offer.own_steps)
            choose_helpers(self._fleet, self._workload, self._schedule, num_steps)
            groups, mixing = self._workload.num_groups, offer.mixing
            costs = generation_costs(offer.group_costs, offer.group_steps)
            order = group_order(groups, costs, mixing.order, offer.deal)
            self._iterations.append(Iteration.begin(offer, order, self._workload))

    # --- generation -----------------------------------------------------------------------

    def _on_generated(self, fragment: Fragment) -> list[Instruction]:
        iteration, device = self._generated(fragment)
        if fragment in iteration.to_restart:
            return self._restart(iteration, fragment)
        iteration.num_to_generate -= 1
        turned: list[Instruction] = []
        if fragment in iteration.regenerating:  # its rewards are known
            iteration.regenerating.discard(fragment)
            iteration.put(iteration.parked.pop(fragment, []))
            turned = self._closed(iteration) or self._turn_when_generated()
        else:
            iteration.to_score.append(Score(fragment, device))
        if iteration.num_to_generate and not self._layout.streamed:
            return turned
        scores, iteration.to_score = iteration.to_score, []
        iteration.scored_on.update({do.fragment: do.device for do in scores})
        return [*scores, *turned]

    def _on_paused(self, fragment: Fragment, next_step: int) -> list[Instruction]:
        iteration, _ = self._generated(fragment)
        if fragment in iteration.to_restart:
            return self._restart(iteration, fragment)
        iteration.queue.add(fragment, next_step)
        return []

    def _restart(self, iteration: Iteration, fragment: Fragment) -> list[Instruction]:
        iteration.to_restart.discard(fragment)
        iteration.held_on.pop(fragment, None)
        iteration.queue.add(fragment)
        return []

    def _generated(self, fragment: Fragment) -> tuple[Iteration, str]:
        """Take a fragment back from its device."""
        iteration = self._open(fragment.iteration)
        name = iteration.generating.pop(fragment, None)
        if name is None:
            raise ControllerError(f"{fragment} was not being generated: {self!r}")
        device = self._fleet[name]
        told = (d for d in device.queue if isinstance(d, Generate) and d.fragment == fragment)
        self._fleet.take_back(device, next(told))
        return iteration, name

    def _on_scored(self, fragment: Fragment) -> list[Instruction]:
        iteration = self._open(fragment.iteration)
        if not iteration.score(fragment):
            raise ControllerError(f"{fragment} was scored but not waited for: {self!r}")
        groups: tuple[int, ...] = (fragment.group,)
        if self._workload.advantages_need_all_groups or not self._layout.pipelined:
            if iteration.num_unscored:
                return []
            groups = tuple(sorted(iteration.unscored))
        elif iteration.unscored[fragment.group]:
            return []
        return [ComputeAdvantages(iteration.index, groups)]

    # --- training -------------------------------------------------------------------------

    def _on_advantages(self, event: AdvantagesComputed) -> list[Instruction]:
        iteration = self._open(event.iteration)
        if not iteration.without_advantages.issuperset(event.groups):
            raise ControllerError(f"groups {event.groups} already have advantages: {self!r}")
        everyone = tuple(range(self._workload.group_size))
        for place, group in enumerate(event.groups):
            iteration.give_advantages(group)
            if group not in event.skipped:
                chosen = event.chosen[place] if event.chosen else everyone
                iteration.add_pairs(group, chosen, self._workload, self._layout)
        closed = self._closed(iteration)  # if no group of an update carried a signal
        return [*closed, *self._turn_when_generated()]

    def _turn_when_generated(self) -> list[Instruction]:
        """End the first phase of a colocated layout when all pairs are there."""
        return self._turn_all("trainer") if self._layout.colocated and self._trains_now() else []

    def _trains_now(self) -> bool:
        """Say whether a colocated layout is in its second phase."""
        if not self._iterations:
            return False
        oldest = self._iterations[0]
        return not (oldest.without_advantages or oldest.regenerating or oldest.is_trained)

    def _turn_all(self, role: Role) -> list[Instruction]:
        return self._turn(list(self._fleet), role)

    def _turn(self, devices: Sequence[DeviceState], role: Role) -> list[Instruction]:
        turning = [device for device in devices if device.mode != role]
        return [do for device in turning for do in self._dispatcher.switch(device, role)]

    def _on_trained(self, pack: Pack) -> list[Instruction]:
        iteration, device = self._take_back(pack)
        iteration.trained.setdefault(device.name, []).append(pack)
        clock = self._fleet.training_clock
        if not (device.queue or device.packs):
            self._fleet.training_clock = max(clock, device.trains_until)
        return self._closed(iteration)

    def _on_too_large(self, pack: Pack) -> list[Instruction]:
        iteration, device = self._take_back(pack)
        if pack.num_pairs == 1:
            raise ControllerError(f"one pair does not fit into the memory of {device.name}")
        device.largest_pack = pack.load / 2
        iteration.put(pack.blocks)
        for prepared in self._fleet.return_packs(device):  # just as large
            del iteration.training[prepared.index]
            iteration.put(prepared.blocks)
        return []

    def _take_back(self, pack: Pack) -> tuple[Iteration, DeviceState]:
        iteration = self._open(pack.iteration)
        _, name = iteration.training.pop(pack.index, (None, ""))
        if not name:
            raise ControllerError(f"pack {pack.index} was not being trained: {self!r}")
        self._done(Train(pack, self._version, name))
        return iteration, self._fleet[name]

    def _closed(self, iteration: Iteration) -> list[Instruction]:
        """End the training of an update whose last pair is in a sum, or that has none."""
        is_oldest = iteration is self._iterations[0]
        if iteration.reducing or not iteration.update_is_trained or not is_oldest:
            return []
        if not iteration.trained:
            return self._after_update(iteration)
        iteration.reducing = True
        devices = tuple(sorted(iteration.trained))
        return [Reduce(iteration.index, devices, self._fleet.holder)]

    def _on_reduced(self, iteration: Iteration) -> list[Instruction]:
        if not iteration.reducing or iteration.stepping:
            raise ControllerError(f"iteration {iteration.index} was not being reduced: {self!r}")
        iteration.stepping = True
        return [Step(iteration.index, self._version, self._fleet.holder)]

    # --- devices --------------------------------------------------------------------------

    def _on_joined(self, device: Device) -> list[Instruction]:
        """Take a device in, and give it every version that work may name."""
        if device.name in self._fleet:
            raise ControllerError(f"{device.name} joined, but is there already: {self!r}")
        self._fleet.add(device)
        for version in sorted(self._needed_versions() | {self._version}):
            self._pushes.ask(version, [device.name])
        return [*self._copy_if_still(), *self._begin_pushes()]

    def _on_lost(self, names: frozenset[str]) -> list[Instruction]:
        if not self.survives(names):
            raise ControllerError(f"{self.holder} is lost, and with it the state of the optimizer")
        if strangers := sorted(name for name in names if name not in self._fleet):
            raise ControllerError(f"{', '.join(strangers)} lost, but was not there: {self!r}")
        self._pushes.lose(names)
        not_copied = self._copies.lose(names)
        lost = [self._fleet.remove(name) for name in sorted(names)]
        self._fleet.keep_roles()
        returned = [pack for device in lost for pack in device.packs]
        for device in self._fleet:
            returned += self._fleet.return_packs(device)
        if was_holder := self.holder in names:
            self._fleet.replace_holder()
            for iteration in self._iterations:
                lose_holder(iteration)
        for iteration in self._iterations:
            own = [pack for pack in returned if pack.iteration == iteration.index]
            lose_devices(iteration, names, own)
        if self._version + 1 in not_copied and not was_holder:
            return [*self._copied_or_made(self._version + 1), *self._load_again()]
        reduces = self._closed(self._iterations[0]) if was_holder and self._iterations else []
        return [*self._copy_if_still(), *self._load_again(), *reduces]

    def _on_leaving(self, name: str) -> list[Instruction]:
        """Give a device no work any more; others go on with what it was told to do next."""
        if name not in self._fleet or not self.may_leave(name):
            raise ControllerError(f"{name} cannot leave: {self!r}")
        device = self._fleet[name]
        for pack in self._fleet.leave(device):
            iteration = self._open(pack.iteration)
            del iteration.training[pack.index]
            iteration.put(pack.blocks)
        copies = self._copy_if_still() if name == self.holder else []
        return [*copies, *self._push_to_trainers(), *self._turn_when_generated()]

    def _release(self) -> list[Instruction]:
        """Let the leaving devices go of which nothing is needed any more."""
        released: list[Instruction] = []
        for device in self._fleet.leaving():
            if not self._is_needed(device):
                released += [Release(device.name), *self._on_lost(frozenset([device.name]))]
        return released

    def _is_needed(self, device: DeviceState) -> bool:
        name = device.name
        if device.queue or self._pushes.involve(name) or self._copies.involve(name):
            return True
        if name == self.holder:
            updating = any(iteration.reducing for iteration in self._iterations)
            if updating or not self.survives([name]):
                return True
        return any(iteration.needs(name) for iteration in self._iterations)

    def _load_again(self) -> list[Instruction]:
        """Turn colocated devices to what was lost; push versions that are not there any more."""
        if self._layout.colocated and self._iterations and len(self._iterations[0].queue):
            return [*self._begin_pushes(), *self._turn_all("rollout")]
        generating = self._fleet.with_home("rollout")
        missing = self._begun_versions().difference(*(device.loaded for device in generating))
        for version in sorted(missing):
            self._pushes.ask(version, [device.name for device in generating])
        return self._push_to_trainers()

    def _push_to_trainers(self) -> list[Instruction]:
        """Push the newest version to those that may train and have it not, as one that just may."""
        return self._push(self._version, (device for device in self._fleet if device.may_train))

    def _begun_versions(self) -> set[int]:
        """Return the versions on which groups of open iterations began: each ends on its own."""
        return {v for iteration in self._iterations for v in iteration.queue.versions.values()}

    def _needed_versions(self) -> set[int]:
        """Return those, and the one on which groups begin."""
        return self._begun_versions() | {self._versions.policy}

    # --- versions -------------------------------------------------------------------------

    def _on_stepped(self, version: int) -> list[Instruction]:
        if version != self._version + 1 or not self._iterations[0].stepping:
            raise ControllerError(f"version {version} does not follow: {self!r}")
        return self._copied_or_made(version)

    def _copied_or_made(self, version: int) -> list[Instruction]:
        """Have the state of the next version copied; it counts when that is done, or cannot be."""
        return list(self._copies.of(version)) or self._made(version)

    def _copy_if_still(self) -> list[Instruction]:
        """Have the state copied, unless the next one is being made."""
        stepping = self._iterations and self._iterations[0].stepping
        return [] if stepping else list(self._copies.of(self._version))

    def _on_copied(self, name: str, version: int) -> list[Instruction]:
        if not self._copies.made(version, name, self._versions.generating[0]):
            raise ControllerError(f"{name} copied the state of version {version} unasked: {self!r}")
        return self._made(version) if version > self._version else []

    def _made(self, version: int) -> list[Instruction]:
        """Take up a version that cannot be lost with one device any more."""
        self._versions = replace(self._versions, newest=version)
        self._fleet.restart_clock()
        iteration = self._iterations[0]
        iteration.updated = True
        return self._after_update(iteration)

    def _after_update(self, iteration: Iteration) -> list[Instruction]:
        """Go on with the next update of an iteration, or with the next iteration."""
        if iteration.begin_next_update():
            return [*self._push_to_trainers(), *self._closed(iteration)]
        self._iterations.popleft()
        self._finishing.append(
            (FinishIteration(iteration.index, updated=iteration.updated), self._version)
        )
        pushes: list[Instruction] = []
        if self._version != self._versions.policy:
            generating = (*self._versions.generating, self._version)
            self._versions = Versions(self._version, generating[-self._schedule.num_ahead - 1 :])
            pushes = self._push(self._version, self._fleet)
        turns: list[Instruction] = []
        if self._layout.colocated:  # who has to load it turns then
            ready = [device for device in self._fleet if self._version in device.loaded]
            turns = self._turn(ready, "rollout")
        return [*pushes, *turns, *(self._closed(self._iterations[0]) if self._iterations else [])]

    def _on_update_skipped(self, iteration: Iteration, version: int) -> list[Instruction]:
        if version != self._version + 1 or not iteration.stepping:
            raise ControllerError(f"version {version} was not to be made: {self!r}")
        self._fleet.restart_clock()
        then = self._after_update(iteration)
        return [*self._copy_if_still(), *then]  # a standby may have come meanwhile

    def _push(self, version: int, devices: Iterable[DeviceState]) -> list[Instruction]:
        lacking = [device.name for device in devices if version not in device.loaded]
        self._pushes.ask(version, lacking)
        return self._begin_pushes()

    def _begin_pushes(self) -> list[Instruction]:
        return list(self._pushes.begin(self._version, self._needed_versions()))

    def _on_push_failed(self, name: str, version: int, source: str) -> list[Instruction]:
        if not self._pushes.failed(version, name, source):
            raise ControllerError(f"{name} was not to load version {version}: {self!r}")
        return self._begin_pushes()

    def _on_loaded(self, name: str, version: int) -> list[Instruction]:
        if not self._pushes.loaded(version, name):
            raise ControllerError(f"{name} loaded version {version} unasked: {self!r}")
        device = self._fleet[name]
        device.loaded |= {version}
        device.loaded &= {*self._versions.generating, device.newest}
        self._fleet.file(device)
        pushes = self._begin_pushes()
        if self._layout.colocated:
            role: Role = "trainer" if self._trains_now() else "rollout"
            if device.mode != role:
                return [*pushes, *self._dispatcher.switch(device, role)]
        return pushes

    def _finished(self) -> list[Instruction]:
        """Return the iterations that are over: all devices hold what they made, in order."""
        finished: list[Instruction] = []
        while self._finishing:
            finish, version = self._finishing[0]
            if not self._fleet.all_hold(version):
                break
            self._finishing.popleft()
            finished.append(finish)
        return finished

    # --- bookkeeping ----------------------------------------------------------------------

    def _open(self, index: int) -> Iteration:
        for iteration in self._iterations:
            if iteration.index == index:
                return iteration
        raise ControllerError(f"iteration {index} is not open: {self!r}")

    def _done(self, work: Work) -> None:
        try:
            self._fleet.take_back(self._fleet[work.device], work)
        except (KeyError, ValueError):
            raise ControllerError(f"{work} was not under way: {self!r}") from None

    def validate(self) -> None:
        """Raise AssertionError if what is kept up to date is not what it should be (for tests)."""
        self._fleet.validate()
        for iteration in self._iterations:
            iteration.validate()
        check(self.snapshot())

    def __repr__(self) -> str:
        queues = {device.name: device.queue for device in self._fleet if device.queue}
        return (
            f"Controller(layout={self._layout.name}, version={self._version}, "
            f"iterations={list(self._iterations)}, {queues=}, finishing={list(self._finishing)})"
        )
