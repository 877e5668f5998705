"""A simulation: the controller of a run, and devices on a virtual clock.

The controller is the one of a real run: what it orders takes the time that the cost model says,
and what cannot be done is refused (`ledger.py`), so a simulation is a test of the controller too.

| instruction | what it takes |
|---|---|
| Generate | each step its own jittered time, then decoding; Pause ends it after the running step |
| Score | each sample a time on one of the reward servers; at once if rewards cost nothing |
| Train, Step, Switch | a jittered time of the device |
| CopyState | nothing: adapters are small |
| Push | at once to devices that train only, else `push` seconds beside the device's other work |
| Reduce | `gradient_sum` seconds for each sum that is added to another, beside other work |
| ComputeAdvantages | nothing |

A device does one thing at a time, in the order of its instructions. What crosses a link between
sites takes its time on top (`transfers.py`): work begins when what it needs is there.
"""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from digen_core.control import protocol
from digen_core.control.controller import Controller
from digen_core.control.costs import Costs
from digen_core.control.protocol import Device, Event, Generate, Instruction, Step, Switch, Train
from digen_core.control.schedule import UNMIXED, WHOLE, Deal, Mixing, Schedule, Workload
from digen_core.records import Span
from digen_core.sim.clock import Clock, Jitter
from digen_core.sim.device import SimulatedDevice, Task
from digen_core.sim.ledger import Ledger, SimulationError
from digen_core.sim.report import SimulationReport, Staleness, make_report
from digen_core.sim.reward_servers import Request, RewardServers
from digen_core.sim.transfers import Transfers


class Simulation:
    """The body of a controller: its devices, and what they do, in virtual time."""

    def __init__(
        self,
        controller: Controller,
        devices: Sequence[Device],
        workload: Workload,
        schedule: Schedule,
        costs: Costs,
        trained_steps: Sequence[int],
        jitter: Jitter,
        mixing: Mixing = UNMIXED,
        unforeseen: Mapping[str, float] = MappingProxyType({}),
    ) -> None:
        self._controller = controller
        self._mixing = mixing
        self._unforeseen = unforeseen
        self._workload = workload
        self._schedule = schedule
        self._costs = costs
        self._trained_steps = tuple(trained_steps)
        self._jitter = jitter
        self._clock = Clock()
        self._ledger = Ledger()
        self._transfers = Transfers(costs, self._clock)
        self._servers = RewardServers(
            self._clock, jitter, seconds=costs.reward, num_servers=costs.reward_servers
        )
        self._requests: dict[protocol.Fragment, Request] = {}
        self._devices: dict[str, SimulatedDevice] = {}
        self._device_names: list[str] = []  # those lost too
        self._spans: list[Span] = []
        self._staleness = Staleness()
        self._num_holders = 1  # of the optimizer's state; with each goes what is under way
        self._ends: list[float] = []
        self._num_iterations = self._num_offered = 0
        self._performers = self._make_performers()
        for device in devices:
            self._add(device)

    def run(self, num_iterations: int) -> SimulationReport:
        """Run so many iterations.

        Raises:
            SimulationError: as in ``simulate``.
        """
        self._num_iterations = num_iterations
        self._perform(self._controller.start())
        for _ in range(self._schedule.max_staleness + 1):
            self._offer()
        while len(self._ends) < num_iterations:
            if not self._clock.advance():
                raise SimulationError(
                    f"stalled at {self._clock.now:.1f} s in iteration {len(self._ends) + 1}: "
                    f"{self._controller!r}"
                )
        return make_report(
            self._ends,
            self._spans,
            self._device_names,
            self._staleness,
            self._schedule,
            self._transfers.crossings,
        )

    # --- devices come and go --------------------------------------------------------------

    def join(self, time: float, device: Device) -> None:
        """Let a device come at a time."""

        def come() -> None:
            self._add(device)
            self._deliver(protocol.DeviceJoined(device))

        self._clock.at(time, come)

    def lose(self, time: float, name: str) -> None:
        """Let a device vanish at a time, with what it does and holds."""

        def vanish() -> None:
            self._num_holders += name == self._controller.holder
            self._devices.pop(name).stop()
            self._transfers.lose_device(name)
            for fragment in self._ledger.lose_device(name):
                if request := self._requests.pop(fragment, None):
                    request.dropped = True
            self._deliver(protocol.DevicesLost((name,)))

        self._clock.at(time, vanish)

    def leave(self, time: float, name: str) -> None:
        """Ask a device to leave at a time."""
        self._clock.at(time, lambda: self._deliver(protocol.DeviceLeaving(name)))

    def _release(self, do: protocol.Release) -> None:
        self._ledger.check_device(do, do.device)
        if not self._devices.pop(do.device).is_idle:
            raise SimulationError(f"{do.device} is at work: {do}")
        self._ledger.lose_device(do.device)
        self._transfers.lose_device(do.device)

    def _add(self, device: Device) -> None:
        self._devices[device.name] = SimulatedDevice(
            device,
            self._costs,
            self._clock,
            self._jitter,
            self._done,
            pace=self._unforeseen.get(device.kind, 1.0),
            late=lambda do, pace: self._deliver(protocol.BatchLate(do.batch, pace)),
        )
        self._device_names.append(device.name)
        self._transfers.add_device(device)
        self._ledger.add_device(device.name)

    # --- events ---------------------------------------------------------------------------

    def _deliver(self, event: Event) -> None:
        self._perform(self._controller.handle(event))

    def _deliver_soon(self, event: Event) -> None:
        self._clock.after(0.0, lambda: self._deliver(event))

    def _offer(self) -> None:
        if self._num_offered < self._num_iterations:
            work = self._workload
            rollout = [n for n, own in self._devices.items() if "rollout" in own.device.roles]
            self._transfers.encode(self._num_offered, work.num_groups, rollout)
            own = ((tuple(range(num)),) * work.group_size for num in work.group_trained)
            kinds = len(work.kinds_of_groups)
            offer = protocol.IterationOffered(
                self._num_offered,
                self._trained_steps,
                kinds * work.group_costs,
                self._mixing,
                self._deal(),
                own_steps=kinds * tuple(own),
                group_steps=kinds * work.group_steps,
            )
            self._deliver_soon(offer)
            self._num_offered += 1

    def _deal(self) -> Deal:
        """Deal an iteration's samples to its updates, at random."""
        if self._workload.num_updates == 1:
            return WHOLE
        units, epochs = self._workload.dealt_units, range(self._workload.epochs)
        return self._workload.deal([self._jitter.shuffle(units) for _ in epochs])

    def _done(self, task: Task) -> None:
        """A device has done a task."""
        self._spans.append(task.span(self._clock.now))
        match task.do:
            case Generate() as do:
                self._ledger.denoised(do, task.end_step)
                self._transfers.denoised(do, task.end_step)
                if task.end_step == do.batch.num_steps:
                    self._deliver(protocol.BatchGenerated(do.batch))
                else:
                    self._deliver(protocol.BatchPaused(do.batch, task.end_step))
            case Train(pack):
                self._deliver(protocol.PackTrained(pack))
            case Step(_, version, device):
                self._ledger.stepped(version + 1, device)
                self._deliver(protocol.Stepped(version + 1))
            case Switch(device, role):
                self._deliver(protocol.Switched(device, role))

    # --- instructions ---------------------------------------------------------------------

    def _make_performers(self) -> dict[type[Instruction], Callable[[Any], None]]:
        return {
            Generate: self._generate,
            protocol.Pause: self._pause,
            protocol.Score: self._score,
            protocol.ComputeAdvantages: self._compute_advantages,
            Train: self._train,
            protocol.Reduce: self._reduce,
            Step: self._step,
            protocol.CopyState: self._copy_state,
            protocol.Push: self._push,
            Switch: self._enqueue,
            protocol.Release: self._release,
            protocol.FinishIteration: self._finish_iteration,
        }

    def _perform(self, instructions: Sequence[Instruction]) -> None:
        for do in instructions:
            self._performers[type(do)](do)

    def _enqueue(self, do: Generate | Train | Step | Switch) -> None:
        self._ledger.check_device(do, do.device)
        ready = self._transfers.inputs(do) if isinstance(do, Generate | Train) else self._clock.now
        self._devices[do.device].enqueue(do, ready)

    def _generate(self, do: Generate) -> None:
        self._ledger.check_generate(do)
        self._enqueue(do)

    def _pause(self, do: protocol.Pause) -> None:
        self._ledger.check_device(do, do.device)
        first_step = self._devices[do.device].pause(do.batch)
        if first_step is not None:
            self._deliver_soon(protocol.BatchPaused(do.batch, first_step))

    def _score(self, do: protocol.Score) -> None:
        self._ledger.check_score(do)
        self._requests[do.fragment] = self._servers.score(do.fragment, self._scored)

    def _scored(self, request: Request) -> None:
        fragment = request.fragment
        del self._requests[fragment]
        self._spans.append(
            Span(
                fragment.iteration,
                f"score g{fragment.group:02d} f{fragment.index}",
                "score",
                "reward-servers",
                request.queued,
                request.started,
                self._clock.now,
                group=fragment.group,
                fragment=fragment.index,
                num_items=fragment.num_samples,
            )
        )
        self._deliver(protocol.FragmentScored(fragment))

    def _compute_advantages(self, do: protocol.ComputeAdvantages) -> None:
        if self._workload.screens(do.groups[0]):
            successors = tuple((old, old + self._workload.num_groups) for old in do.groups)
            self._deliver_soon(protocol.GroupsReplaced(do.iteration, successors))
            return
        size, trained = self._workload.group_size, self._workload.trained_per_group
        chosen = tuple(
            self._jitter.choose(trained, size) if trained < size else tuple(range(size))
            for _ in do.groups
        )
        self._ledger.add_advantages(do.iteration, zip(do.groups, chosen, strict=True))
        named = chosen if trained < size else ()
        self._deliver_soon(protocol.AdvantagesComputed(do.iteration, do.groups, chosen=named))

    def _train(self, do: Train) -> None:
        self._ledger.check_train(do)
        if do.pack.iteration > 0:  # the first one warms up
            for versions, num_pairs in self._ledger.staleness(do.pack, do.version):
                self._staleness.add(versions, num_pairs)
        self._enqueue(do)

    def _reduce(self, do: protocol.Reduce) -> None:
        for name in do.devices:
            self._ledger.check_device(do, name)
        devices = [self._devices[name] for name in do.devices]
        began = self._clock.now
        summed = self._transfers.sums(do, self._costs.gradient_sum)

        def reduced() -> None:
            if any(own not in self._devices.values() for own in devices):
                return  # it is void with the sum of one that was lost
            if summed > began:
                times = began, began, self._clock.now
                self._spans.append(Span(do.iteration, "reduce", "reduce", do.device, *times))
            self._deliver(protocol.GradientReduced(do.iteration))

        self._after(summed - began, reduced)

    def _copy_state(self, do: protocol.CopyState) -> None:
        self._ledger.check_device(do, do.device)

        def copied() -> None:
            if do.device in self._devices:
                self._ledger.copied(do.device, do.version)
                self._deliver(protocol.StateCopied(do.device, do.version))

        self._after(0.0, copied)

    def _after(self, seconds: float, action: Callable[[], None]) -> None:
        """Do something later, unless the holder of the optimizer's state is lost until then."""
        holder = self._num_holders
        self._clock.after(seconds, lambda: action() if holder == self._num_holders else None)

    def _step(self, do: Step) -> None:
        self._ledger.check_step(do)
        self._enqueue(do)

    def _push(self, do: protocol.Push) -> None:
        self._ledger.check_push(do)
        at_once = do.version == 0 or "rollout" not in self._devices[do.device].device.roles
        queued = self._clock.now

        def load() -> None:
            if do.device not in self._devices:
                return
            if do.source not in self._devices:
                self._deliver(protocol.PushFailed(do.device, do.version, do.source))
                return
            name, now = f"push v{do.version} to {do.device}", self._clock.now
            self._spans.append(
                Span(-1, name, "push", do.device, queued, queued, now, version=do.version)
            )
            self._ledger.loaded(do.device, do.version)
            self._deliver(protocol.VersionLoaded(do.device, do.version))

        crossing = self._transfers.version(do.source, do.device) - self._clock.now
        self._after(crossing + (0.0 if at_once else self._costs.push), load)

    def _finish_iteration(self, do: protocol.FinishIteration) -> None:
        if do.iteration != len(self._ends):
            raise SimulationError(f"iteration {len(self._ends) + 1} should end before: {do}")
        self._ends.append(self._clock.now)
        self._ledger.finish(do.iteration)
        self._transfers.finish(do.iteration)
        self._offer()
