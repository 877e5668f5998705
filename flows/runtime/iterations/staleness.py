"""Adaptive staleness: how many groups of each iteration may begin on an older version."""

from digen_core.control.schedule import Schedule, adapted_most_stale
from flows.runtime.context import RunContext
from flows.runtime.iterations.recorder import IterationRecorder


class Staleness:
    """Lets as many groups be stale as devices have time for and the clip puts up with.

    Without ``schedule.max_stale_clipped`` it leaves that to the schedule.
    """

    def __init__(self, run: RunContext, schedule: Schedule) -> None:
        self._progress = run.progress
        self._max_clipped = run.config.schedule.max_stale_clipped
        self._most = schedule.most_stale(run.workers.workload.num_groups)

    @property
    def most_now(self) -> int | None:
        """How many groups of the next iteration may be stale; None: the schedule says."""
        if self._max_clipped is None:
            return None
        known = self._progress.most_stale
        return self._most if known is None else min(known, self._most)

    def learn(self, recorder: IterationRecorder) -> None:
        """Adapt to what a finished iteration was like; one without an update says nothing."""
        now, began = self.most_now, recorder.num_stale_groups
        if now is None or self._max_clipped is None or began is None:
            return
        self._progress.may_be_stale(
            adapted_most_stale(
                now,
                self._most,
                began=began,
                clipped=recorder.stale_clip_fraction,
                max_clipped=self._max_clipped,
            )
        )
