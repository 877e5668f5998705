"""Values on their way to work: Dask moves them early, from nearby, and across a slow link once.

By itself a worker fetches what a task needs when all of it is made. A pack needs the sum of the
pack before it on the same device: so all else would come only when the device waits for it. And of
a value that is at several workers, Dask drops all copies but one, whatever is between them.
"""

from collections import Counter
from typing import Any

from dask.typing import Key
from distributed import Scheduler, SchedulerPlugin
from distributed.active_memory_manager import ReduceReplicas, Suggestion, SuggestionGenerator
from distributed.scheduler import TaskState, WorkerState

from tasks.cluster.presence import site_in

PRELOAD = __name__
"""Schedulers of runs preload this module."""


def dask_setup(scheduler: Scheduler) -> None:
    """Have values fetched ahead, and copies kept at each site."""
    scheduler.add_plugin(_FetchesAhead(scheduler))
    manager = scheduler.extensions["amm"]
    for policy in [own for own in manager.policies if type(own) is ReduceReplicas]:
        manager.policies.remove(policy)
        manager.add_policy(_KeepsAtSites())


class _FetchesAhead(SchedulerPlugin):
    """Has a worker fetch what there is of the inputs of a task that only it may do."""

    name = "digen-fetches-ahead"

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler

    def transition(self, key: Key, start: str, finish: str, *_: object, **__: object) -> None:
        """Ask for the inputs of a task that is new."""
        if finish != "waiting":
            return
        task = self._scheduler.tasks[key]
        here = self._only_worker(task)
        if here is None:
            return
        lacking = [own for own in task.dependencies if own.who_has and here not in own.who_has]
        if lacking:
            self._scheduler.stream_comms[here.address].send(
                {
                    "op": "acquire-replicas",
                    "who_has": {own.key: _nearest(here, own) for own in lacking},
                    "nbytes": {own.key: own.nbytes for own in lacking},
                    "stimulus_id": f"fetch-ahead-{key!s}",
                }
            )

    def _only_worker(self, task: TaskState) -> WorkerState | None:
        """Return the worker that a task is for, if it is there and there is no other."""
        if not task.worker_restrictions or len(task.worker_restrictions) > 1:
            return None
        (address,) = task.worker_restrictions
        return self._scheduler.workers.get(address)


class _KeepsAtSites(ReduceReplicas):
    """Drops copies that nobody waits for, but not the last one at a site."""

    def run(self) -> SuggestionGenerator:
        """Suggest what Dask does, of the copies that may go."""
        for own in super().run():
            _, dropped = self.manager.pending.get(own.ts, (set(), set()))
            left = (own.ts.who_has or set()) - dropped
            copies = Counter(map(_site, left))
            if may_go := {ws for ws in left if copies[_site(ws)] > 1 or not _site(ws)}:
                yield Suggestion(own.op, own.ts, may_go)


def _nearest(here: WorkerState, task: TaskState) -> list[str]:
    """Return the addresses of who holds a value at a worker's site; of all, if none is there."""
    holders: Any = task.who_has
    near = [own.address for own in holders if _site(own) == _site(here)]
    return near or [own.address for own in holders]


def _site(worker: WorkerState) -> str:
    return site_in(worker.resources)
