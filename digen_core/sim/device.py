"""A device that takes time and does nothing else."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from digen_core.control.costs import Costs
from digen_core.control.protocol import Batch, Device, Generate, Step, Switch, Train
from digen_core.control.schedule import LATE
from digen_core.records import Span
from digen_core.sim.clock import Clock, Jitter, Timer
from digen_core.sim.ledger import SimulationError


@dataclass(slots=True, eq=False)
class Task:
    """An instruction that a device was given."""

    do: Generate | Train | Step | Switch
    queued: float
    ready: float  # when all is there that it needs
    started: float = -1.0
    step_ends: NDArray[np.float64] = field(default_factory=lambda: np.empty(0))  # of Generate
    end_step: int = -1  # of Generate; earlier than its instruction's once it is to pause
    timer: Timer | None = None

    def span(self, ended: float) -> Span:
        """Return what is reported of it at its end."""
        times = (self.do.device, self.queued, self.started, ended)
        match self.do:
            case Generate(batch, first_step, _, version, _):
                first, *others = batch.fragments
                return Span(
                    batch.iteration,
                    f"denoise {batch.name} t{first_step:02d}-{self.end_step - 1:02d}",
                    "denoise",
                    *times,
                    group=first.group,
                    fragment=first.index,
                    beside=tuple((own.group, own.index) for own in others),
                    first_step=first_step,
                    end_step=self.end_step,
                    version=version,
                    num_items=batch.num_samples,
                    cost=batch.cost,
                )
            case Train(pack, version, _):
                return Span(
                    pack.iteration,
                    f"train p{pack.index:03d}",
                    "train",
                    *times,
                    version=version,
                    num_items=pack.num_pairs,
                    cost=pack.cost,
                )
            case Step(iteration, version, _):
                name = f"optimizer step v{version + 1}"
                return Span(iteration, name, "step", *times, version=version + 1)
            case Switch(_, role):
                return Span(-1, f"switch to {role}", "switch", *times)


class SimulatedDevice:
    """Does its tasks one after the other, in the order in which they came."""

    def __init__(
        self,
        device: Device,
        costs: Costs,
        clock: Clock,
        jitter: Jitter,
        done: Callable[[Task], None],
        *,
        pace: float = 1.0,
        late: Callable[[Generate, float], None] = lambda do, pace: None,
    ) -> None:
        """Have nothing to do.

        Args:
            device: of the run.
            costs: of its work, as predicted.
            clock: of the simulation.
            jitter: of its work.
            done: is called with each task that it has done.
            pace: times that a denoising step takes of what is predicted.
            late: is called where a batch takes so many times as long, when a step is done.
        """
        self.device = device
        self._costs = costs
        self._own = costs.kinds[device.kind]
        self._clock = clock
        self._jitter = jitter
        self._done = done
        self._pace = pace
        self._late = late
        self._queue: deque[Task] = deque()
        self._running: Task | None = None

    @property
    def is_idle(self) -> bool:
        """Whether it has done all that it was told to."""
        return self._running is None and not self._queue

    def enqueue(self, do: Generate | Train | Step | Switch, ready: float = 0.0) -> None:
        """Do this after what was asked for before, and not before it is ready."""
        self._queue.append(Task(do, self._clock.now, ready))
        if self._running is None:
            self._start_next()

    def pause(self, batch: Batch) -> int | None:
        """End a batch after the step that is running; its last step and decoding continue.

        Returns:
            Its first step, if it had not begun and does not begin now.

        Raises:
            SimulationError: the device was not told to generate it.
        """
        task = self._running
        if task is not None and isinstance(task.do, Generate) and task.do.batch == batch:
            if self._clock.now < task.started:  # it waits for what it needs
                self._abandon()
                return task.do.first_step
            running = int(np.searchsorted(task.step_ends, self._clock.now, side="right"))
            if running < len(task.step_ends) - 1:
                task.end_step = task.do.first_step + running + 1
                self._finish_at(task, float(task.step_ends[running]))
            return None
        for task in self._queue:
            if isinstance(task.do, Generate) and task.do.batch == batch:
                self._queue.remove(task)
                return task.do.first_step
        raise SimulationError(f"{self.device.name} does not generate {batch}")

    def stop(self) -> None:
        """Do nothing any more."""
        self._queue.clear()
        self._abandon()

    def _abandon(self) -> None:
        """Let what is running not happen, and go on with what comes next."""
        if self._running is not None and self._running.timer is not None:
            self._running.timer.cancel()
        self._running = None
        if self._queue:
            self._start_next()

    def _start_next(self) -> None:
        task = self._running = self._queue.popleft()
        task.started = max(self._clock.now, task.ready)
        self._finish_at(task, task.started + self._seconds(task))

    def _seconds(self, task: Task) -> float:
        match task.do:
            case Generate(batch, first_step, end_step):
                steps = self._jitter.factors(end_step - first_step)
                step = self._own.step(batch.num_samples, batch.cost) * self._pace
                ends = np.cumsum(step * steps)
                task.step_ends, task.end_step = task.started + ends, end_step
                if self._pace >= LATE:
                    self._clock.at(float(task.step_ends[0]), lambda: self._find_late(task))
                decoded = batch.fragments if end_step == batch.num_steps else ()
                decode = sum(self._own.decode(own.num_samples, own.cost) for own in decoded)
                return float(ends[-1]) + decode * self._jitter()
            case Train(pack):
                return self._own.pack(pack.num_pairs, pack.cost) * self._jitter()
            case Step():
                return self._costs.optimizer_step * self._jitter()
            case Switch(_, role):
                to_rollout = role == "rollout"
                costs = self._costs
                seconds = costs.switch_to_rollout if to_rollout else costs.switch_to_trainer
                return seconds * self._jitter()

    def _find_late(self, task: Task) -> None:
        """Tell that a batch is late if it is under way, is not to pause, and has steps left."""
        assert isinstance(task.do, Generate)
        is_whole = task.end_step == task.do.end_step and len(task.step_ends) > 1
        if self._running is task and is_whole:
            self._late(task.do, self._pace)

    def _finish_at(self, task: Task, time: float) -> None:
        if task.timer is not None:
            task.timer.cancel()
        task.timer = self._clock.at(time, lambda: self._finish(task))

    def _finish(self, task: Task) -> None:
        self._running = None
        if self._queue:
            self._start_next()
        self._done(task)
