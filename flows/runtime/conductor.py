"""The conductor: the loop that runs all iterations of a run around one controller.

The way of one task, out and back (-> in the flow process, => over the network):

| Controller.handle -> Conductor._carry_out -> Executor.submit -> Submitter.submit
|   -> LeanDaskTaskRunner.submit => Dask scheduler => worker: run_task -> the task's body
|   => receipt and "finished" over Dask's event stream => Completions -> RunContext.inbox
|   -> Conductor._advance -> Executor.events_of -> Controller.handle

Who waits for whom:

| waits                   | for                                              | unblocked by
|-------------------------|--------------------------------------------------|-----------------------
| conductor               | anything to happen, POLL_SECONDS at most         | RunContext.inbox
| an iteration's turn     | its flow run to open, the layout to let it begin | Controller
| its flow run (a thread) | the iteration's end                              | OpenIteration.outcome
| a task                  | its inputs and its device                        | Dask
| a newcomer's thread     | the model to load beside the run                 | its flow run, `join`
| Conductor.complete      | the iteration's record to be published           | its flow run
| an iteration's record   | that of the one before to be published           | Conductor, Endings
| records, MLflow         | each other, never a device                       | RunContext.publishing

An iteration's flow run is opened while the iteration before works, so that its start-up, and the
publishing of the last record, cost the devices nothing. All decisions and submissions are made in
the loop, in the thread of the run's own flow.
"""

from collections import deque
from collections.abc import Sequence
from queue import Empty
from time import monotonic
from types import TracebackType
from typing import Self

from digen_core.control.controller import Controller
from digen_core.control.protocol import (
    ComputeAdvantages,
    CostsUpdated,
    Event,
    FinishIteration,
    Instruction,
    IterationOffered,
    Release,
    Switch,
    Switched,
)
from digen_core.eventlog.recorder import Recorder
from digen_core.rollout.steps import own_steps_of_groups, steps_of_iteration
from digen_core.training.deal import deal_of_iteration
from digen_core.transport.trajectories import forget_trajectories
from flows.runtime.context import RunContext
from flows.runtime.executor import Executor
from flows.runtime.fleet.changes import FleetChanges
from flows.runtime.fleet.joining import Joined, JoinFailed
from flows.runtime.fleet.roles import Turn
from flows.runtime.iterations.endings import SETTLE_SECONDS, Endings
from flows.runtime.iterations.open_iteration import OpenIteration, Published
from flows.runtime.iterations.round import Ended
from flows.runtime.iterations.runs import IterationRuns, RunEnded
from flows.runtime.iterations.staleness import Staleness
from flows.runtime.memory import Memory
from flows.runtime.observers import say, tell
from flows.runtime.publishing import keep_last
from flows.runtime.requests import is_stop
from flows.runtime.workload import next_workload, schedule_of
from tasks.runner.completions import Completion

POLL_SECONDS = 1.0
LEAD_SECONDS = 1.5
LEAD_SHARE = 0.25
"""The next flow run is opened that long, or that share of an iteration, before the last one's
seconds have passed. Earlier, Prefect would count how long it waits as its own time."""


class Conductor:
    """Hears what happened, asks the controller what to do, and has it done.

    Use it by ``with``: no flow run of an iteration outlives the block.
    """

    def __init__(self, run: RunContext) -> None:
        """Prepare a conductor for a run whose workers have loaded the model."""
        schedule = schedule_of(run.config)
        self._run = run
        controller = Controller(
            run.fleet.devices,
            next_workload(run),
            schedule,
            run.progress.known_costs,
            version=run.progress.version,
            next_iteration=run.progress.num_iterations,
        )
        self._controller = Recorder(controller)
        self._memory = Memory(run, self._controller)
        self._executor = Executor(run)
        self._max_stale = schedule.num_ahead
        self._staleness = Staleness(run, schedule)
        self._first = run.progress.num_iterations  # not 0 in a run that is resumed
        self._runs = IterationRuns(run, self._first)
        self._opened: dict[int, OpenIteration] = {}  # and not finished
        self._num_offered = self._first
        self._endings = Endings()
        self._published: set[int] = set()
        self._last_seconds = 0.0  # of the iteration that finished last
        self._changes = FleetChanges(run, self._executor, self._controller, self._memory.write)
        self.limit_reached: str | None = None  # as the last finished iteration found

    def start(self, setup: OpenIteration) -> None:
        """Give every device the version to begin with; that shows in the flow run of ``setup``."""
        self._executor.open(setup)
        self._executor.publish(setup, self._run.progress.holder, self._run.progress.version)
        for event in self._carry_out(self._controller.start()):
            self._handle(event)
        while self._executor.num_running:
            self._advance()
        self._executor.close(setup.index)

    def complete(self, index: int, last: int) -> None:
        """Run until an iteration is over and its record is published.

        Not to be called any more once a limit is reached (`limit_reached`): nothing begins, and it
        would wait for ever.

        Args:
            index: of the iteration.
            last: the iterations up to this one may begin as soon as the layout lets them.

        Raises:
            Pause: a person suspended the run; what had begun is finished.
            RunCancelledError: a person stopped the run.
            TaskFailedError: a task failed.
            StateLostError: the optimizer's state is gone with its worker.
            WorkerLostError: too many workers are gone for too long.
        """
        self._memory.stir()
        while True:
            self._hold()
            if index in self._published:
                self._run.fleet.forgive_losses()
                return
            ahead = 0 if self._run.limit_reached else max(self._max_stale, 1)
            self._offer_until(min(index + ahead, last))
            self._open_runs()
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
        self._memory.write("the run ended" if error is None else _end_of(error))
        self._endings.end_all()
        failure = None if is_stop(error) else error
        for opened in self._opened.values():
            opened.abandon(failure)
        self._executor.stop()
        self._changes.stop()
        self._runs.close(hurry=is_stop(error))

    def _hold(self) -> None:
        """Finish what has begun and wait, while a person wants the run to pause."""
        run, reached = self._run, None
        while run.control.held:
            # Once a limit is reached, iterations that had begun ahead are never finished.
            num_begun = run.progress.num_iterations if self.limit_reached else self._num_offered
            if num_begun == self._first + len(self._published):
                text = f"paused after iteration {num_begun}"
                if run.control.ends_process:
                    keep_last(run)
                run.control.reach_boundary(text)
                if reached is None:
                    reached = monotonic()
                    say(f"{text}; resume it in Prefect")
            self._memory.stir()
            self._advance()
        if reached is not None:
            run.progress.paused(monotonic() - reached)
            say("resumed")

    # --- the flow runs --------------------------------------------------------------------

    def _open_runs(self) -> None:
        """Open the flow runs that are worked on, and the next one shortly before it is."""
        current = self._run.progress.num_iterations
        needed = current + self._max_stale
        opened = self._opened.get(current)
        if opened is not None and opened.begun:
            lead = max(LEAD_SECONDS, LEAD_SHARE * self._last_seconds)
            needed += monotonic() - opened.begun > self._last_seconds - lead
        self._runs.open_until(needed)

    def _offer_until(self, index: int) -> None:
        """Offer iterations whose flow runs are open, in order."""
        while self._num_offered <= index and self._num_offered in self._opened:
            opened = self._opened[self._num_offered]
            opened.begun = monotonic()
            if opened.index - 1 not in self._opened:  # else the devices are not its own yet
                opened.turn.set()
            self._num_offered += 1
            self._executor.open(opened)
            self._handle(*self._changes.look())  # losses that nobody could be told of before
            offer = self._offer_of(opened)
            opened.recorder.stale_limit = offer.stale_limit
            self._handle(offer, *self._changes.take_in())

    def _offer_of(self, opened: OpenIteration) -> IterationOffered:
        config, index, prompts = self._run.config, opened.index, opened.round.prompts
        group_steps = self._run.workers.group_steps(index, prompts)
        numbers = set(group_steps) or {config.rollout.num_steps}
        trained = (steps_of_iteration(config, index, own).trained for own in numbers)
        return IterationOffered(
            index,
            tuple(sorted(set().union(*trained))),
            self._run.workers.group_costs(index, prompts),
            self._run.progress.mixing,
            deal_of_iteration(config, index),
            own_steps_of_groups(config, index, len(prompts), group_steps),
            self._staleness.limit,
            group_steps,
        )

    def _finish(self, index: int) -> None:
        """Let a flow run publish and end."""
        run, now = self._run, monotonic()
        opened = self._opened.pop(index)
        self._executor.close(index)
        run.progress.finished(opened.recorder.step_seconds)
        self._staleness.learn(opened.recorder)
        self._charge()
        # An iteration whose update began, as a device loads a version late, is finished, too: the
        # state is its own already. None is offered after it.
        is_updating = any(own.trained_from is not None for own in self._opened.values())
        self.limit_reached = None if is_updating else run.limit_reached
        self._last_seconds = now - opened.begun
        ended = Ended(
            run.progress.version, self._last_seconds, run.price_per_second, run.progress.spent
        )
        self._endings.add(opened, ended)
        if index + 1 < self._num_offered:
            self._opened[index + 1].begun = now  # before, the devices were not its own
            self._opened[index + 1].turn.set()

    def _charge(self) -> None:
        """Count what the devices have cost meanwhile; often, as they come and go."""
        self._run.progress.charged(self._run.price_per_second, monotonic())

    def _end(self) -> None:
        """Let flow runs end that can."""
        self._endings.end(self._executor.is_running, at_once=self.limit_reached is not None)

    # --- the loop -------------------------------------------------------------------------

    def _advance(self) -> None:
        """Wait for something to happen, and act on it."""
        self._run.control.check()
        self._charge()
        self._handle(*self._changes.look())
        self._changes.recompute()
        self._memory.look()
        try:
            timeout = SETTLE_SECONDS if self._endings else POLL_SECONDS
            message = self._run.inbox.get(timeout=timeout)
        except Empty:
            self._end()
            return
        self._memory.stir()
        match message:
            case Completion() if not self.limit_reached:
                self._on_completion(message)
            case CostsUpdated():
                self._handle(message)
            case Joined() | JoinFailed() | Turn():
                self._changes.hear(message)
                self._handle(*self._changes.take_in())
            case OpenIteration() | Published() | RunEnded():
                self._on_flow_run(message)

    def _on_flow_run(self, message: OpenIteration | Published | RunEnded) -> None:
        match message:
            case OpenIteration():
                if self._runs.take(message):  # else it is under way, or was
                    forget_trajectories(self._run.run_dir, message.index)  # of a killed process
                    self._opened[message.index] = message
                    self._executor.encode_ahead(message)
            case Published(index):
                self._published.add(index)
            case RunEnded():
                self._runs.end(message)

    def _on_completion(self, completion: Completion) -> None:
        if not completion.succeeded:  # it may have gone with its worker
            self._executor.note_failure(completion)
            self._handle(*self._changes.look(now=True))
        self._handle(*self._executor.events_of(completion))

    def _handle(self, *happened: Event) -> None:
        events = deque(happened)
        while events:
            event = events.popleft()
            instructions = self._controller.handle(event)
            tell(event, *instructions)
            events.extend(self._carry_out(instructions))
        self._end()

    def _carry_out(self, instructions: Sequence[Instruction]) -> list[Event]:
        """Have instructions done; return the events that follow at once."""
        events: list[Event] = []
        for instruction in instructions:
            match instruction:
                case _ if self.limit_reached:
                    break
                case ComputeAdvantages():
                    events.append(self._executor.compute_advantages(instruction))
                case FinishIteration(index):
                    self._finish(index)
                case Release(device):
                    self._changes.release(device)
                case Switch(device, role) if not self._run.workers.switch_takes_task:
                    events.append(Switched(device, role))
                case _:
                    self._executor.submit(instruction)
        return events


def _end_of(error: BaseException) -> str:
    """Return how a run ended, in a line."""
    text = " ".join(str(error).split()) or type(error).__name__
    return f"the run was stopped: {text}" if is_stop(error) else f"the run failed: {text}"
