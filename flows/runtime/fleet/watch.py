"""The watch over a run's workers: every few seconds, who is gone, who hangs, and who came.

| gone     the scheduler has the worker no more, or has another process of its name
| broken   the members of a gang cannot go on together, as one of its tasks said
| frozen   no heartbeat for cluster.heartbeat_timeout seconds, in all looks of three seconds
| hung     one of its tasks takes longer than it may, though the process answers

Only what is known is said here; :mod:`flows.runtime.fleet.losses` acts on it.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from threading import Lock
from time import monotonic
from typing import Final
from uuid import UUID

from distributed import Client

from digen_core.config.schedule import ClusterConfig
from tasks.cluster.presence import Presence, present_workers

LOOK_SECONDS: Final = 3.0

MIN_TIMEOUT: Final = 600.0
MIN_WARNING: Final = 120.0
TIMEOUT_FACTOR: Final = 20.0
WARNING_FACTOR: Final = 5.0
LOADING_SECONDS: Final = 7200.0
"""Bounds of a task's seconds where the config leaves them to us."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How long a task may take, in seconds."""

    warning: float
    timeout: float

    @classmethod
    def of(cls, config: ClusterConfig, expected: float | None) -> "Limits":
        """Return the limits of a task.

        Args:
            config: of the run's cluster.
            expected: seconds that it should take; None: nobody knows, such as how long a model
                loads.
        """
        if config.task_timeout != "auto":
            return cls(config.task_timeout / 2, config.task_timeout)
        if expected is None:
            return cls(LOADING_SECONDS / 4, LOADING_SECONDS)
        return cls(
            max(MIN_WARNING, WARNING_FACTOR * expected), max(MIN_TIMEOUT, TIMEOUT_FACTOR * expected)
        )


@dataclass(slots=True)
class _Watched:
    task: str
    limits: Limits
    is_notified: bool = False
    is_awaited: bool = True


@dataclass(frozen=True, slots=True)
class Seen:
    """What a look found."""

    workers: Mapping[str, Presence]
    """All that the cluster has, by address."""

    lost: Mapping[str, str] = field(default_factory=dict)
    """Names of workers of the run -> what happened to them, to follow "worker NAME (ADDRESS)"."""

    slow: tuple[str, ...] = ()
    """Sentences about tasks that take long; each is seen once."""


class Watch:
    """Remembers what tasks are under way and who was silent; may be used from several threads."""

    def __init__(self, client: Client, config: ClusterConfig) -> None:
        """Prepare to look at a cluster.

        Args:
            client: of the cluster.
            config: says how long workers may be silent and tasks may take.
        """
        self._client = client
        self._config = config
        self._lock = Lock()
        self._tasks: dict[UUID, _Watched] = {}
        self._silent: dict[str, float] = {}  # address -> when a look found it so, and all since
        self._broken: dict[str, str] = {}  # address -> why
        self._next_look = 0.0

    def begin(self, task_run_id: UUID, task: str, expected: float | None = None) -> None:
        """Watch a task that was submitted.

        Args:
            task_run_id: Prefect's id of it.
            task: its name.
            expected: seconds that it should take once it runs; None: nobody knows.
        """
        with self._lock:
            self._tasks[task_run_id] = _Watched(task, Limits.of(self._config, expected))

    def end(self, task_run_ids: Iterable[UUID]) -> None:
        """Watch tasks no more: they ended, or nobody waits for them."""
        with self._lock:
            for task_run_id in task_run_ids:
                self._tasks.pop(task_run_id, None)

    def give_up(self, task_run_ids: Iterable[UUID]) -> None:
        """Watch tasks that nobody waits for, but whose workers may, on and on: they can hang."""
        with self._lock:
            for task_run_id in task_run_ids:
                if watched := self._tasks.get(task_run_id):
                    watched.is_awaited = False

    def broken(self, address: str, why: str) -> None:
        """Let the next look, which is due now, find a worker lost: its gang cannot go on."""
        with self._lock:
            self._broken[address] = why
        self.hasten()

    def hasten(self) -> None:
        """Let the next look be due now."""
        self._next_look = 0.0

    @property
    def patience(self) -> float:
        """Seconds within which something should happen: what is waited for should have ended."""
        with self._lock:
            awaited = [watched for watched in self._tasks.values() if watched.is_awaited]
            warnings = [watched.limits.warning for watched in awaited]
        return max(warnings, default=MIN_WARNING)

    @property
    def is_due(self) -> bool:
        """Whether it is time for another look."""
        return monotonic() >= self._next_look

    def look(
        self,
        addresses: Mapping[str, str],
        pools: Collection[str],
        followers: Mapping[str, Mapping[str, str]] | None = None,
    ) -> Seen:
        """Look at the cluster.

        Args:
            addresses: of the workers that hold the run's model, by name.
            pools: whose workers, whichever they are now, are looked at, too.
            followers: of those that lead a gang, which is lost with any of them: their addresses.

        Raises:
            SchedulerLostError: the scheduler does not answer.
        """
        workers, now = present_workers(self._client), monotonic()
        self._next_look = now + LOOK_SECONDS
        self._silent = {
            address: self._silent.get(address, now)
            for address, worker in workers.items()
            if worker.silent_seconds > self._config.heartbeat_timeout
        }
        # Not at once: our own process may have stood still, and has to hear of them first.
        frozen = {at for at, since in self._silent.items() if now >= since + LOOK_SECONDS}
        lost, slow = dict[str, str](), list[str]()
        scoring = {w.name: w.address for w in workers.values() if not w.resources.isdisjoint(pools)}
        for name, address in {**scoring, **addresses}.items():
            worker = workers.get(address)
            own = {name: address, **(followers or {}).get(name, {})}
            if why := self._why_lost(own, workers, frozen):
                lost[name] = why
            elif worker and (found := self._overdue(worker)):
                task, seconds, is_hung = found
                took = f"has been at {task!r} for {seconds:.0f} s"
                if is_hung:
                    lost[name] = took
                else:
                    slow.append(
                        f"worker {name} {took}, far longer than it should take; see its log"
                    )
        return Seen(workers, lost, tuple(slow))

    def _why_lost(
        self, members: Mapping[str, str], workers: Mapping[str, Presence], frozen: Collection[str]
    ) -> str | None:
        """Return what happened to the first member of a device, its leader, or the next."""
        leader = next(iter(members))
        with self._lock:  # of whoever is lost nothing stays: another process may get its address
            broken = self._broken.pop(members[leader], None)
        for name, address in members.items():
            whose = "" if name == leader else f"is a gang whose member {name} ({address}) "
            worker = workers.get(address)
            if worker is None:
                return f"{whose}was lost"
            if address in frozen:
                return f"{whose}has sent no heartbeat for {worker.silent_seconds:.0f} s"
        return broken

    def _overdue(self, worker: Presence) -> tuple[str, float, bool] | None:
        """Return a task that takes too long, its seconds, and whether it hangs."""
        with self._lock:
            for key, seconds in worker.executing.items():
                watched = self._tasks.get(_id_in(key))
                if watched is None:
                    continue
                if seconds > watched.limits.timeout:
                    return watched.task, seconds, True
                if seconds > watched.limits.warning and not watched.is_notified:
                    watched.is_notified = True
                    return watched.task, seconds, False
        return None


def _id_in(key: str) -> UUID:
    """Return the task run that a Dask key names; see tasks/runner/task_runner.py."""
    try:
        return UUID(key[-36:])
    except ValueError:  # somebody else's task
        return UUID(int=0)
