"""The fleet of a run while iterations run: workers that go and come, as the controller's events."""

from collections.abc import Callable, Mapping

from digen_core.control.protocol import CostsUpdated, DeviceJoined, DevicesLost, Event
from flows.runtime.context import RunContext
from flows.runtime.executor import Executor
from flows.runtime.fleet.joining import Joined, JoinFailed, Joining
from flows.runtime.fleet.losses import StateLostError, look, look_if_due
from flows.runtime.fleet.waiting import Waiting
from flows.runtime.observers import say
from flows.runtime.scheduling import add_kind
from tasks.cluster.presence import recompute_elsewhere


class FleetChanges:
    """Drops what lost workers had, has newcomers made ready, and waits where nobody is left."""

    def __init__(
        self,
        run: RunContext,
        executor: Executor,
        holder: str,
        remember: Callable[[str], None],
    ) -> None:
        """Prepare for a run.

        Args:
            run: its context.
            executor: of its instructions.
            holder: the device that holds the optimizer's state.
            remember: writes the event log, and why: a task takes too long.
        """
        self._run = run
        self._executor = executor
        self._holder = holder
        self._remember = remember
        self._joining = Joining(run)
        self._joined: list[Joined] = []  # no iteration is open in which that would show
        self._waiting = Waiting(run)
        self._to_recompute: set[str] = set()  # lost addresses whose place nobody could take yet

    def look(self, *, now: bool = False) -> list[Event]:
        """Look at the cluster, if it is time.

        Args:
            now: do not wait for the time.

        Raises:
            StateLostError: the holder is lost.
            WorkerLostError: workers are lost again and again, or nobody came back in time.
            SchedulerLostError: the scheduler does not answer.
        """
        run = self._run
        taking_part = {
            device.name: run.fleet.addresses[device.name] for device in run.fleet.devices
        }
        seen = look(run) if now else look_if_due(run)
        if seen is None:
            return []
        if seen.slow:
            self._remember("; ".join(seen.slow))
        self._joining.forget(seen.lost)
        lost = {name: address for name, address in taking_part.items() if name in seen.lost}
        self._joining.take_in(seen.workers)
        events: list[Event] = self._lose(lost) if lost else []
        if run.fleet.rollout_devices() or self._executor.num_running:
            self._waiting.end()
        else:
            self._waiting.for_role("rollout")
        return events

    def hear(self, message: Joined | JoinFailed) -> None:
        """Note how the making ready of a worker ended."""
        match message:
            case Joined(device):
                if self._joining.end(device.name):
                    self._joined.append(message)
            case JoinFailed():
                self._joining.refuse(message)

    def take_in(self) -> list[Event]:
        """Let workers that are ready take part, once an iteration is open in which that shows."""
        events: list[Event] = []
        while self._joined and self._executor.is_open:
            joined = self._joined.pop(0)
            if joined.device.name in self._run.fleet.addresses:  # else it was lost since
                self._run.fleet.join(joined.device)
                say(f"worker {joined.device.name} has joined")
                costs = add_kind(self._run, joined.device, joined.measured)
                events += [CostsUpdated(costs), DeviceJoined(joined.device)]
        return events

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
        """Make nobody ready any more."""
        self._joining.stop()

    def _lose(self, lost: Mapping[str, str]) -> list[Event]:
        """Drop what devices had, given with their addresses."""
        if self._holder in lost:
            raise StateLostError(f"the optimizer's state was lost with worker {self._holder}")
        self._executor.forget(lost.keys())
        self._to_recompute.update(lost.values())
        return [DevicesLost(tuple(sorted(lost)))]
