"""Run iterations, as far ahead of each other as the layout lets them: one loop, one controller.

Each iteration has a flow run in a thread of its own. It is opened while the iteration before still
works, so that its start-up, and the publishing of the last record, cost the devices nothing. All
decisions and submissions are made in the loop, which runs in the thread of the run's own flow.
"""

from collections import deque
from collections.abc import Sequence
from contextvars import copy_context
from dataclasses import dataclass
from queue import Empty
from threading import Thread
from time import time
from types import TracebackType
from typing import Self

from digen_core.control.controller import Controller, ControllerError
from digen_core.control.protocol import (
    ComputeAdvantages,
    CostsUpdated,
    DeviceLost,
    Event,
    FinishIteration,
    Instruction,
    IterationOffered,
    Switch,
    Switched,
)
from flows.collect import HEARTBEAT_SECONDS
from flows.executor import Executor
from flows.iteration import iteration
from flows.open_iteration import Ended, OpenIteration
from flows.run import on_cluster
from flows.session import Session
from flows.workload import schedule_of, workload_of
from tasks.cluster import lost_devices, recompute_elsewhere, worker_lost
from tasks.completions import Completion
from tasks.emulation import EmulatedConfig


@dataclass(frozen=True, slots=True)
class _Closed:
    """The flow run of an iteration has ended."""

    index: int
    error: BaseException | None


class Conductor:
    """Hears what happened, asks the controller what to do, and has it done.

    Use it by ``with``: no flow run of an iteration outlives the block.
    """

    def __init__(self, session: Session) -> None:
        """Prepare a conductor for a run whose workers have loaded the model."""
        schedule = schedule_of(session.config)
        self._session = session
        self._controller = Controller(
            session.devices,
            workload_of(session.config),
            schedule,
            session.known_costs,
            version=session.version,
            next_iteration=session.num_iterations,
        )
        self._executor = Executor(session)
        self._max_ahead = schedule.max_staleness if schedule.max_stale_share else 1
        self._first = session.num_iterations  # not 0 in a run that is resumed
        self._threads: list[Thread] = []  # by iteration, from the first on
        self._opened: dict[int, OpenIteration] = {}  # and not finished
        self._num_opened = self._first
        self._num_offered = self._first
        self._ending: list[tuple[OpenIteration, Ended]] = []  # finished, but a task of it runs
        self._closed: set[int] = set()
        self.out_of_time = False  # as the last finished iteration found

    def start(self, setup: OpenIteration) -> None:
        """Give every device the version to begin with; that shows in the flow run of ``setup``."""
        self._executor.open(setup)
        self._executor.publish(setup, self._session.trainer_devices()[0], self._session.version)
        for event in self._carry_out(self._controller.start()):
            self._handle(event)
        while self._executor.num_running:
            self._advance()
        self._executor.close(setup.index)

    def complete(self, index: int, last: int) -> None:
        """Run until an iteration is over and its record is published.

        Args:
            index: of the iteration.
            last: the iterations up to this one may begin as soon as the layout lets them.

        Raises:
            TaskFailedError: a task failed.
            WorkerLostError: a worker is gone without which the run cannot go on.
        """
        while index not in self._closed:
            ahead = 0 if self._session.out_of_time else self._max_ahead
            self._offer_until(min(index + ahead, last))
            self._open_until(index + ahead + 1)
            self._advance()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End all flow runs: with the error those that have begun, as cancelled the others."""
        for opened, ended in self._ending:
            opened.outcome.set_result(ended)
        for opened in self._opened.values():
            opened.abandon(error)
        while len(self._closed) < len(self._threads):
            match self._session.inbox.get():
                case OpenIteration() as opened:
                    opened.abandon()
                case _Closed(index):
                    self._closed.add(index)
        for thread in self._threads:
            thread.join()

    # --- the flow runs --------------------------------------------------------------------

    def _open_until(self, index: int) -> None:
        """Open the next flow run, when the one before has reported to the inbox that it is open."""
        number = self._first + len(self._threads)
        if number > min(index, self._session.config.num_iterations - 1, self._num_opened):
            return
        thread = Thread(
            target=copy_context().run,
            args=(self._run_flow, number),
            name=f"iteration-{number:04d}",
        )
        self._threads.append(thread)
        thread.start()

    def _run_flow(self, index: int) -> None:
        error = None
        try:
            on_cluster(self._session, iteration, index)
        except BaseException as raised:
            error = raised
        self._session.inbox.put(_Closed(index, error))

    def _offer_until(self, index: int) -> None:
        """Offer iterations whose flow runs are open, in order."""
        while self._num_offered <= index and self._num_offered in self._opened:
            opened = self._opened[self._num_offered]
            opened.begun = time()
            self._num_offered += 1
            self._executor.open(opened)
            self._handle(IterationOffered(opened.index, opened.round.steps.trained))

    def _finish(self, index: int) -> None:
        """Let a flow run publish and end."""
        session, now = self._session, time()
        opened = self._opened.pop(index)
        self._executor.close(index)
        session.step_seconds = opened.recorder.step_seconds
        session.num_iterations += 1
        self.out_of_time = session.out_of_time
        self._ending.append((opened, Ended(session.version, now - opened.begun)))
        if index + 1 < self._num_offered:
            self._opened[index + 1].begun = now  # before, the devices were not its own

    def _end(self) -> None:
        """Let finished flow runs end, unless a task shows there whose end would not be heard."""
        for opened, ended in list(self._ending):
            if self.out_of_time or not self._executor.is_running(opened):
                self._ending.remove((opened, ended))
                opened.outcome.set_result(ended)

    # --- the loop -------------------------------------------------------------------------

    def _advance(self) -> None:
        """Wait for something to happen, and act on it."""
        try:
            message = self._session.inbox.get(timeout=HEARTBEAT_SECONDS)
        except Empty:
            self._look_for_losses()
            return
        match message:
            case OpenIteration():
                self._opened[message.index] = message
                self._executor.encode_ahead(message)
                self._num_opened += 1
            case CostsUpdated():
                self._handle(message)
            case _Closed(index, error):
                self._closed.add(index)
                if error is not None:
                    raise error
            case Completion() if not self.out_of_time:
                self._on_completion(message)

    def _on_completion(self, completion: Completion) -> None:
        if not completion.succeeded:
            self._look_for_losses()
        event = self._executor.event_of(completion)
        if event is None:
            self._end()
        else:
            self._handle(event)

    def _handle(self, event: Event) -> None:
        events = deque([event])
        while events:
            events.extend(self._carry_out(self._controller.handle(events.popleft())))
        self._end()

    def _carry_out(self, instructions: Sequence[Instruction]) -> list[Event]:
        """Have instructions done; return the events that follow at once."""
        events: list[Event] = []
        for instruction in instructions:
            match instruction:
                case _ if self.out_of_time:
                    break
                case ComputeAdvantages():
                    events.append(self._executor.compute_advantages(instruction))
                case FinishIteration(index):
                    self._finish(index)
                case Switch(device, role) if not isinstance(self._session.config, EmulatedConfig):
                    # A worker keeps what both roles need.
                    events.append(Switched(device, role))
                case _:
                    self._executor.submit(instruction)
        return events

    def _look_for_losses(self) -> None:
        """Go on without the workers that are gone.

        Raises:
            WorkerLostError: the controller cannot.
        """
        session = self._session
        for name in lost_devices(session.client, session.addresses):
            address = session.addresses.pop(name)
            session.devices = [device for device in session.devices if device.name != name]
            self._executor.forget(name)
            try:
                self._handle(DeviceLost(name))
            except ControllerError as error:
                raise worker_lost(name, address) from error
            # What tasks that are under way on other devices wait for.
            place = session.addresses[session.rollout_devices()[0]]
            recompute_elsewhere(session.client, address, place)
