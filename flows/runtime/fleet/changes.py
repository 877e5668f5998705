"""The fleet of a run while iterations run: workers that go and come, as the controller's events."""

from collections.abc import Callable, Collection, Mapping

from digen_core.control.protocol import (
    CostsUpdated,
    DeviceJoined,
    DeviceLeaving,
    DevicesLost,
    Event,
    Role,
)
from digen_core.eventlog.recorder import Recorder
from flows.runtime.context import RunContext
from flows.runtime.executor import Executor
from flows.runtime.fleet.joining import Joined, JoinFailed, Joining
from flows.runtime.fleet.loading import roles_of
from flows.runtime.fleet.losses import StateLostError, look, look_if_due, take_over, use_copy
from flows.runtime.fleet.roles import Turn, note_declared
from flows.runtime.fleet.waiting import Waiting
from flows.runtime.notify import notify
from flows.runtime.observers import say
from flows.runtime.scheduling import add_kind
from tasks.cluster.leaving import let_go
from tasks.cluster.presence import Presence, recompute_elsewhere


class FleetChanges:
    """Drops what lost workers had, has newcomers made ready, and waits where nobody is left."""

    def __init__(
        self,
        run: RunContext,
        executor: Executor,
        controller: Recorder,
        remember: Callable[[str], None],
    ) -> None:
        """Prepare for a run.

        Args:
            run: its context.
            executor: of its instructions.
            controller: of the run, to which the events go.
            remember: writes the event log, and why: a task takes too long.
        """
        self._run = run
        self._executor = executor
        self._controller = controller
        self._told = {own.name: run.fleet.addresses[own.name] for own in run.fleet.devices}
        self._num_told = run.fleet.num_lost  # losses
        self._remember = remember
        self._joining = Joining(run)
        self._joined: list[Joined] = []  # no iteration is open in which that would show
        self._unfit: list[JoinFailed] = []  # those that take part and could load no version
        self._waiting = Waiting(run)
        self._turn: Turn | None = None  # that is planned, or under way
        self._to_recompute: set[str] = set()  # lost addresses whose place nobody could take yet

    def look(self, *, now: bool = False) -> list[Event]:
        """Look at the cluster, if it is time.

        Args:
            now: do not wait for the time.

        Raises:
            StateLostError: the holder is lost, and nobody has a copy of its state.
            WorkerLostError: workers are lost again and again, or nobody came back in time.
            SchedulerLostError: the scheduler does not answer.
        """
        run = self._run
        seen = look(run) if now else look_if_due(run)
        if seen is not None:
            if seen.slow:
                self._remember("; ".join(seen.slow))
            self._joining.take_in(seen.workers)
            note_declared(run, seen.workers)
        events = self._lose()
        if seen is None:
            return events
        if not events:
            events = self._leave(seen.workers)
        executor = self._executor
        if run.fleet.rollout_devices() or executor.num_running or not executor.is_open:
            self._waiting.end()  # a run that is paused needs nobody, and takes nobody in
        else:
            self._waiting.for_role("rollout")
        return events

    def hear(self, message: Joined | JoinFailed | Turn) -> None:
        """Note how the making ready of a worker ended, or that a device is to turn."""
        match message:
            case Turn():
                if self._turn is None or self._turn.device not in self._controller.leaving:
                    self._turn = message  # else one is under way: the next iteration tells again
            case Joined(device, address):
                if self._joining.end(device.name, address):
                    self._joined.append(message)
            case JoinFailed(name, address):
                if self._told.get(name) == address:
                    self._unfit.append(message)
                else:
                    self._joining.refuse(message)

    def take_in(self) -> list[Event]:
        """Let workers that are ready take part, once an iteration is open in which that shows.

        Those that turn out to be unfit go.

        Raises:
            TaskFailedError: nobody else has the role of one.
        """
        events: list[Event] = self._leave_out(self._unfit.pop(0)) if self._unfit else []
        while self._joined and self._executor.is_open:
            joined = self._joined.pop(0)
            if self._is_there(joined):
                # first: whoever predicts meanwhile knows what each device of the run costs
                costs = add_kind(self._run, joined.device, joined.measured)
                self._run.fleet.join(joined.device)
                self._told[joined.device.name] = joined.address
                say(f"worker {joined.device.name} has joined")
                events += [CostsUpdated(costs), DeviceJoined(joined.device)]
        return events

    def _leave_out(self, failed: JoinFailed) -> list[Event]:
        """Let a worker go that has joined and could load no version."""
        run, name, address = self._run, failed.name, failed.address
        if self._told.get(name) != address:  # it was lost since
            return []
        if failed.error is not None and not self._controller.may_leave(name):
            raise failed.error
        run.fleet.left(name)
        self._drop([name], was_holder=False)
        self._to_recompute.add(address)
        let_go(run.client, address)
        notify(
            run,
            "join-failed",
            f"worker {name} ({address}) could not join: {failed.error}; it is let go. All workers "
            "have to reach each other",
        )
        return [DevicesLost((name,))]

    def _is_there(self, joined: Joined) -> bool:
        """Say whether a worker that was ready was not lost since; another may have its name."""
        return self._run.fleet.addresses.get(joined.device.name) == joined.address

    def _leave(self, workers: Mapping[str, Presence]) -> list[Event]:
        """Ask the controller for the next device of those whose workers are to leave.

        Workers that the run has no use for go at once.
        """
        run = self._run
        for address, worker in workers.items():
            if not (worker.is_leaving and worker.roles):
                continue
            name = worker.name
            if run.fleet.addresses.get(name) != address:
                let_go(run.client, address)
            elif self._told.get(name) == address and self._may_leave(name):
                say(f"worker {name} leaves when nobody needs what it has")
                return [DeviceLeaving(name)]
        turn = self._turn
        if turn and turn.device in self._told and self._may_leave(turn.device):
            say(str(turn))
            return [DeviceLeaving(turn.device)]
        return []

    def _may_leave(self, name: str) -> bool:
        is_asked = name in self._controller.leaving
        return self._executor.is_open and not is_asked and self._controller.may_leave(name)

    def release(self, name: str) -> None:
        """Let a worker go that was to leave, and go on from the copy of the state that it had.

        One that turns comes back as a newcomer does.
        """
        run = self._run
        address, was_holder = run.fleet.addresses[name], run.progress.holder == name
        followers = run.fleet.followers.get(name, {})
        run.fleet.left(name)
        if was_holder:
            use_copy(run)
        self._drop([name], was_holder=was_holder)
        if self._turn and self._turn.device == name:
            self._come_back(name, self._turn.role, address, followers)
            self._turn = None
            return
        self._to_recompute.add(address)  # what it was embedding for the next iteration
        let_go(run.client, address)
        say(f"worker {name} has left")

    def _come_back(self, name: str, role: Role, address: str, followers: Mapping[str, str]) -> None:
        """Let the next look take a device in with another role; it keeps a model that does."""
        run, before = self._run, self._run.fleet.known[name]
        run.fleet.turned(name, role)
        if roles_of(run, before) == roles_of(run, run.fleet.known[name]):
            run.fleet.has_loaded(address)
            run.fleet.formed(name, followers)

    def _drop(self, names: Collection[str], *, was_holder: bool) -> None:
        """Drop what devices had that are gone, one of which may have had the optimizer's state."""
        self._executor.forget(names)
        if was_holder:
            self._executor.take_over()
        for name in names:
            del self._told[name]

    def recompute(self) -> None:
        """Have somebody recompute what tasks on living devices wait for and only lost ones had.

        Nobody may be able to yet; then it is done when a version is loaded the next time.
        """
        if not self._to_recompute:
            return
        run = self._run
        able = [name for name in run.fleet.rollout_devices() if self._executor.is_ready(name)]
        if able:
            recompute_elsewhere(run.client, self._to_recompute, run.fleet.addresses[able[0]])
            self._to_recompute.clear()

    def stop(self) -> None:
        """Make nobody ready any more; who is, but does not take part yet, is found again."""
        self._joining.stop()
        for joined in self._joined:
            if self._is_there(joined):
                self._run.fleet.turned_away(joined.device.name)

    def _lose(self) -> list[Event]:
        """Drop what devices had that are lost, be it that an evaluation found that.

        The controller is told once an iteration is open: there it shows what others do instead.
        """
        run = self._run
        if self._num_told == run.fleet.num_lost:
            return []
        here = {device.name: run.fleet.addresses[device.name] for device in run.fleet.devices}
        lost = {name: at for name, at in self._told.items() if here.get(name) != at}
        holder, is_open = self._controller.holder, self._executor.is_open
        if is_open and not self._controller.survives(lost):
            raise StateLostError(f"the optimizer's state was lost with worker {holder}")
        if run.progress.holder in lost:  # else an evaluation has gone on from the copy
            take_over(run)
        if not is_open:
            return []
        self._num_told = run.fleet.num_lost
        if self._turn and self._turn.device in lost:
            self._turn = None
        self._drop(lost, was_holder=holder in lost)
        self._to_recompute.update(lost.values())
        return [DevicesLost(tuple(sorted(lost)))]
