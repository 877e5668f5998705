"""Lineage: what Dask keeps of how results were made, so that they can be made again.

By itself it remembers more with every task of a run, however long that is: a train state is made
from the one before, so that with the newest all others are known, and all that they were made from.
"""

import asyncio
from typing import Any

from dask.typing import Key
from dask.utils import key_split
from distributed import Client, Future, Scheduler, Worker, WorkerPlugin
from distributed.scheduler import Recs
from distributed.spans import SpansSchedulerExtension

PRELOAD = __name__
"""Schedulers of runs preload this module."""


class _NoSpans(SpansSchedulerExtension):
    """In the place of Dask's record of all groups of tasks there were; ours is in `trace/`."""

    def observe_tasks(self, *_: object, **__: object) -> dict[Any, Any]:
        """Keep nothing of new tasks."""
        return {}

    def heartbeat(self, *_: object) -> None:
        """Keep nothing of what workers tell of theirs."""


def dask_setup(scheduler: Scheduler) -> None:
    """Let the scheduler keep no spans."""
    scheduler.extensions["spans"] = _NoSpans(scheduler)


class ForgetsSources(WorkerPlugin):
    """Lets a worker forget from what a result was made: the scheduler says so if it is again."""

    def setup(self, worker: Worker) -> None:
        """Note whose plugin this is."""
        self._tasks = worker.state.tasks

    def transition(self, key: Key, start: str, finish: str, **_: object) -> None:
        """Forget the sources of a task that is done."""
        if finish == "memory" and (task := self._tasks.get(key)):
            for source in task.dependencies:
                source.dependents.discard(task)
                source.waiters.discard(task)
            task.dependencies.clear()


def forget_lineage(client: Client, future: "Future[Any]") -> None:
    """Have the scheduler forget from what a result was made, which it holds as data from then on.

    It returns at once: if the scheduler is gone, others say so.

    Args:
        client: of the cluster.
        future: of a task that is done. If its worker is lost, the result is not made again.
    """
    call = client._run_on_scheduler(_forget_lineage, key=future.key)
    loop: Any = client.loop  # of tornado, on asyncio
    asyncio.run_coroutine_threadsafe(call, loop.asyncio_loop)


def _forget_lineage(key: str, dask_scheduler: Scheduler) -> None:
    """Do it in the scheduler's process; what nobody wants any more goes, and what that was of."""
    key_split.cache_clear()  # Dask's of the last 100 000 keys, of which none comes twice
    for group in dask_scheduler.task_groups.values():
        group.dependencies.clear()  # groups that are gone, too
    task = dask_scheduler.tasks.get(key)
    if task is None or task.state != "memory":  # it is lost, or not wanted any more
        return
    unwanted: Recs = {}
    for source in task.dependencies:
        source.dependents.discard(task)
        if not source.dependents and not source.who_wants:
            unwanted[source.key] = "forgotten"
    task.dependencies = set()
    task.has_lost_dependencies = True  # so that nobody tries to make it again
    dask_scheduler.transitions(unwanted, stimulus_id=f"forget-lineage-{key}")
