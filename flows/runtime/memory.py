"""The memory of a run: what its controller heard and said, written when somebody will ask."""

from shlex import quote
from time import monotonic
from typing import Final

from digen_core.eventlog.file import EVENTS_OF_RUN, answering, write_log
from digen_core.eventlog.recorder import Recorder
from flows.runtime.context import RunContext
from flows.runtime.notify import notify
from flows.runtime.observers import warn

LOOK_SECONDS: Final = 1.0


class Memory:
    """Writes the event log when the run stands still, a task hangs, or `digen explain` asks."""

    def __init__(self, run: RunContext, recorder: Recorder) -> None:
        """Prepare for a run.

        Args:
            run: its context.
            recorder: of its controller.
        """
        self._run = run
        self._recorder = recorder
        self._next_look = 0.0
        self._quiet_since = monotonic()
        self._is_written = False

    def stir(self) -> None:
        """Note that something happened, or that nobody waited until now."""
        self._quiet_since, self._is_written = monotonic(), False

    def look(self) -> None:
        """Write the log if it is time: somebody asks, or nothing has happened for too long."""
        now, run = monotonic(), self._run
        if now < self._next_look:
            return
        self._next_look = now + LOOK_SECONDS
        with answering(run.run_dir) as is_asked:
            if is_asked:
                self.write("digen explain asked")
        quiet = now - self._quiet_since
        if not self._is_written and quiet > run.watch.patience:
            self._is_written = True
            self.write(f"nothing had happened for {quiet:.0f} s")
            notify(
                run,
                "run-stands-still",
                f"nothing has happened for {quiet:.0f} s; what waits for what: "
                f"digen explain {quote(str(run.run_dir))}",
            )

    def write(self, why: str) -> None:
        """Write the log; the run goes on, or ends as it would, if that fails."""
        run = self._run
        try:
            write_log(run.run_dir, self._recorder.log(run.run_id, why))
        except (OSError, ValueError) as error:
            warn(f"cannot write {run.run_dir / EVENTS_OF_RUN}: {error}")
