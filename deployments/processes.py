"""Processes that belong to a run: its Prefect server, and its workers if it is of this process.

Prefect is imported when workers are asked for.
"""

import os
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import psutil

if TYPE_CHECKING:
    from flows.runtime.context import RunContext

ANSWER_SECONDS = 3.0  # in which a worker says which process it is
PREFECT_MODULE: Final = "deployments.operation.prefect_app"
"""That a Prefect server of digen runs."""


def prefect_server_of(pid: int) -> int | None:
    """Return the process of the Prefect server that a process has started, if there is one."""
    for child in psutil.Process(pid).children(recursive=True):
        with suppress(psutil.Error):  # it ended meanwhile
            if child.cmdline()[1:4] == ["-P", "-m", PREFECT_MODULE]:
                return child.pid
    return None


class WorkerProcesses:
    """Finds the processes of workers; each is asked once."""

    def __init__(self) -> None:
        self._pids: dict[str, int] = {}  # by address of a worker

    def of(self, run_id: str) -> dict[str, int]:
        """Return the processes of a run's workers; of those that do not answer, nothing.

        Args:
            run_id: name of the run; there are none before it is open.
        """
        from flows.runtime.context import context_of
        from tasks.cluster.calls import SchedulerLostError
        from tasks.cluster.presence import present_workers

        try:
            run = context_of(run_id)
            workers = present_workers(run.client)
        except (KeyError, SchedulerLostError):
            return {}
        found = {worker.name: self._pid(run, at) for at, worker in workers.items()}
        return {name: pid for name, pid in found.items() if pid is not None}

    def _pid(self, run: "RunContext", address: str) -> int | None:
        from tasks.cluster.calls import SchedulerLostError, WorkerLostError, on_worker

        if address not in self._pids:
            try:
                pid = on_worker(run.client, address, os.getpid, seconds=ANSWER_SECONDS)
            except (OSError, WorkerLostError, SchedulerLostError):
                return None
            self._pids[address] = pid
        return self._pids[address]
