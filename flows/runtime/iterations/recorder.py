"""Collect the receipts of an iteration and make its record: sample rows, spans and metrics.

What they say of samples is in `sample_recorder.py`, of updates, tasks and devices here.
"""

from collections.abc import Sequence
from math import ceil
from statistics import fmean
from time import time

from digen_core.control.schedule import StaleGroups
from digen_core.records import GENERATING, Crossing, IterationRecord, Span
from digen_core.sim.links import link_metrics
from digen_core.trace.gaps import Gap, idle_gaps
from digen_core.trace.metrics import idle_shares, schedule_metrics
from digen_core.trace.prediction import read_prediction
from digen_core.trace.prices import cost_metrics
from digen_core.trace.usage import Usage, energy_metrics, usage_metrics
from digen_core.trace.utilization import mfu_metrics
from digen_core.trace.windows import Window, iteration_windows
from flows.runtime.context import RunContext
from flows.runtime.iterations.round import Ended, Round
from flows.runtime.iterations.sample_recorder import SampleRecorder
from flows.runtime.iterations.update_metrics import update_metrics
from flows.runtime.progress import STALE_LIMIT
from tasks.receipts import Received, Updated

TRAINING_KINDS = ("train", "reduce", "step")


class IterationRecorder(SampleRecorder):
    """What the receipts of one iteration said, of its samples and of all else."""

    def __init__(self, run: RunContext, round_: Round) -> None:
        super().__init__(run, round_)
        self._updates: list[Updated] = []  # those that made a version
        self._num_skipped = 0  # updates, as a number is NaN or infinite
        self._spans: list[Span] = []
        self._crossings: list[Crossing] = []
        self._usage: dict[str, list[Usage]] = {}  # by device
        self.stale_limit: StaleGroups | None = None
        """How much could begin on older versions, if that is adapted."""

    def add_span(self, span: Span) -> None:
        """Note what a task did, when and where."""
        self._spans.append(span)

    def add_received(
        self, device: str, received: Sequence[Received], version: int | None = None
    ) -> None:
        """Note what came to a device from other sites, and of which version if it was pushed."""
        fleet = self._run.fleet
        own = fleet.known[device].site if device in fleet.known else ""
        for part in received:
            sites = frozenset((own, fleet.site_of(part.source)))
            if own and len(sites) == 2 and "" not in sites:
                span = part.started, part.ended
                self._crossings.append(Crossing(sites, part.num_bytes, *span, version))

    def add_usage(self, device: str, used: Usage) -> None:
        """Note what a device's process used until a task of it ended."""
        self._usage.setdefault(device, []).append(used)

    def add_update(self, update: Updated) -> None:
        """Note what an update measured, and the version that it made."""
        self._updates.append(update)

    def skip_update(self) -> None:
        """Note that an update was not made, as a number is NaN or infinite."""
        self._num_skipped += 1

    @property
    def stale_groups(self) -> StaleGroups | None:
        """Those that an older version generated than was trained first; None: none was."""
        if not self._updates:
            return None
        stale = {own.group for own in self._rewards if self._versions[own] < self._begun_with}
        return StaleGroups(len(stale), max(self._behind, default=0))

    @property
    def _begun_with(self) -> int:
        """The version that was trained first."""
        return self._updates[0].version - 1

    @property
    def _behind(self) -> list[int]:
        """Iterations from the version of each sample to the one that was trained first."""
        per_iteration = self._run.config.train.updates_per_iteration
        return [ceil((self._begun_with - version) / per_iteration) for version in self.versions]

    @property
    def stale_clip_fraction(self) -> float | None:
        """The share of their trained pairs that were clipped; None: there are none."""
        return update_metrics(self._updates).get("train/stale_clip_fraction")

    @property
    def has_updated(self) -> bool:
        """Whether an update was made."""
        return bool(self._updates)

    @property
    def is_barren(self) -> bool:
        """Whether there was no update because of what is NaN or infinite, or lacks a score."""
        return not self._updates and bool(self._num_skipped or self._dropped)

    @property
    def _predicted_seconds(self) -> float | None:
        prediction = read_prediction(self._run.run_dir)
        return prediction.predicted_seconds if prediction else None

    def record(self, ended: Ended, steps_per_task: int) -> IterationRecord:
        """Return the record of the finished iteration.

        Args:
            ended: how it did.
            steps_per_task: denoising steps in one task.
        """
        devices, index = self._run.fleet.devices, self._round.index
        around = self._run.trace.around(index, time())
        window = iteration_windows(around)[index]
        gaps = idle_gaps(around, devices, window)
        metrics = {
            **update_metrics(self._updates),
            **self.sample_metrics(),
            "numerics/skipped_updates": float(self._num_skipped),
            **self._time_metrics(ended.seconds),
            **self._window_metrics(gaps, window),
            **self._staleness_metrics(),
            **self._usage_metrics(),
            **link_metrics(self._crossings),
            **self._cost_metrics(window, ended),
            "orchestration/steps_per_task": float(steps_per_task),
            **self._worker_metrics(),
        }
        return IterationRecord(
            iteration=index,
            version=self._updates[-1].version if self._updates else ended.version,
            seconds=ended.seconds,
            metrics=metrics,
            samples=self.rows(),
            spans=sorted(self._spans, key=lambda span: span.started),
            crossings=self._crossings,
            idle=idle_shares(gaps, devices, window) if window.seconds > 0 else {},
            pictures=self.pictures(),
        )

    def _window_metrics(self, gaps: Sequence[Gap], window: Window) -> dict[str, float]:
        """Return what the devices did with the iteration's time: nothing if it seems to have none.

        Then a clock was set back since the iteration before.
        """
        if window.seconds <= 0:
            return {}
        devices, arithmetic = self._run.fleet.devices, self._run.progress.arithmetic
        predicted = self._predicted_seconds
        found = schedule_metrics(gaps, devices, window, self.num_samples, predicted)
        if arithmetic is not None:
            found |= mfu_metrics(arithmetic, self._spans, devices, window)
        return found

    def _staleness_metrics(self) -> dict[str, float]:
        """Return the versions between the one trained and the one that generated a sample.

        And the iterations between the version with which this one began, and that one.
        """
        versions = self.versions
        stale = [update.version - 1 - version for update in self._updates for version in versions]
        groups, limit = self.stale_groups, self.stale_limit
        if not stale or groups is None:
            return {}
        limits = () if limit is None else (limit.number, limit.iterations)
        return {
            "staleness/mean": fmean(stale),
            "staleness/max": float(max(stale)),
            "staleness/iterations_mean": fmean(self._behind),
            "staleness/iterations_max": float(groups.iterations),
            "staleness/groups": float(groups.number),
            **dict(zip(STALE_LIMIT, map(float, limits), strict=False)),
        }

    def _usage_metrics(self) -> dict[str, float]:
        parts = [usage_metrics(device, used) for device, used in self._usage.items()]
        gangs = {device.name for device in self._run.fleet.devices if device.size > 1}
        parts.append(energy_metrics(self._usage, gangs, self.num_samples))
        return {name: value for part in parts for name, value in part.items()}

    def _cost_metrics(self, window: Window, ended: Ended) -> dict[str, float]:
        if not self._run.config.cluster.price_per_hour:
            return {}
        price = ended.price_per_second
        return cost_metrics(price, window.seconds, self.num_samples, ended.spent)

    def _worker_metrics(self) -> dict[str, float]:
        run = self._run
        return {
            "workers/present": float(len(run.fleet.devices)),
            "workers/lost": float(run.fleet.num_lost),
            "workers/joined": float(run.fleet.num_joined),
            "workers/left": float(run.fleet.num_left),
            "workers/resumed": float(run.progress.num_resumed),
        }

    def _time_metrics(self, seconds: float) -> dict[str, float]:
        return {
            "time/iteration_seconds": seconds,
            "time/rollout_seconds": self._extent("encode", *GENERATING, "score"),
            "time/train_seconds": self._extent(*TRAINING_KINDS),
            "time/push_seconds": self._extent("push"),
            **self._compile_metrics(),
        }

    def _compile_metrics(self) -> dict[str, float]:
        if not self._run.config.model.compile:
            return {}
        return {"time/compile_seconds": sum(span.compile_seconds for span in self._spans)}

    def _extent(self, *kinds: str) -> float:
        """Return the seconds from the first start to the last end of some kinds of task."""
        spans = [span for span in self._spans if span.kind in kinds]
        if not spans:
            return 0.0
        return max(span.ended for span in spans) - min(span.started for span in spans)
