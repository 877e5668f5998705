"""Adaptive staleness: how much of each iteration may begin on older versions."""

from digen_core.control.schedule import Schedule, StaleGroups, adapted_limit
from flows.runtime.context import RunContext
from flows.runtime.iterations.recorder import IterationRecorder


class Staleness:
    """Lets as much be stale as devices have time for and the clip puts up with.

    Without ``schedule.max_stale_clipped`` it leaves that to the schedule.
    """

    def __init__(self, run: RunContext, schedule: Schedule) -> None:
        self._progress = run.progress
        self._max_clipped = run.config.schedule.max_stale_clipped
        self._most = schedule.stale_limit(run.workers.workload.num_groups)

    @property
    def limit(self) -> StaleGroups | None:
        """How much of the next iteration may be stale; None: the schedule says."""
        if self._max_clipped is None:
            return None
        known, most = self._progress.stale_limit, self._most
        if known is None:
            return most
        return StaleGroups(min(known.number, most.number), min(known.iterations, most.iterations))

    def learn(self, recorder: IterationRecorder) -> None:
        """Adapt to what a finished iteration was like; one without an update says nothing."""
        now, began = self.limit, recorder.stale_groups
        if now is None or self._max_clipped is None or began is None:
            return
        self._progress.may_be_stale(
            adapted_limit(
                now,
                self._most,
                began=began,
                clipped=recorder.stale_clip_fraction,
                max_clipped=self._max_clipped,
            )
        )
