"""Collect the receipts of an iteration and make its record: sample rows, spans and metrics."""

from statistics import mean, median, pstdev
from typing import Any

from digen_core.control.protocol import Fragment
from digen_core.records import IterationRecord, SampleRow, Span
from flows.session import Round, Session

TRAINING_KINDS = ("advantages", "train", "reduce", "step")


class IterationRecorder:
    """What the receipts of one iteration said."""

    def __init__(self, session: Session, round_: Round) -> None:
        self._session = session
        self._round = round_
        self._version = session.version  # that generates
        self._spans: list[Span] = []
        self._metrics: dict[str, float] = {}
        self._logprobs: dict[Fragment, dict[int, list[float]]] = {}
        self._workers: dict[Fragment, str] = {}
        self._rewards: dict[Fragment, dict[str, list[float]]] = {}
        self._seconds: dict[tuple[str, Fragment], float] = {}
        self._advantages: dict[int, list[float]] = {}
        self._skipped: set[int] = set()
        self._step_seconds: list[float] = []

    def add_span(self, task: str, kind: str, queued: float, receipt: dict[str, Any]) -> None:
        """Note when and where a task ran."""
        self._spans.append(
            Span(
                self._round.index,
                task,
                kind,
                receipt["device"],
                queued,
                receipt["started"],
                receipt["ended"],
            )
        )

    def add_logprobs(self, fragment: Fragment, receipt: dict[str, Any]) -> None:
        """Note what a denoise task recorded."""
        found = {int(step): values for step, values in receipt["logprobs"].items()}
        self._logprobs.setdefault(fragment, {}).update(found)
        self._workers[fragment] = receipt["device"]
        self._add_seconds("denoise", fragment, receipt)
        self._step_seconds.append(receipt["seconds_per_step"])

    def add_rewards(self, fragment: Fragment, receipt: dict[str, Any]) -> None:
        """Note the rewards of a fragment."""
        self._rewards[fragment] = receipt["rewards"]
        self._add_seconds("score", fragment, receipt)

    def add_advantages(self, receipt: dict[str, Any]) -> None:
        """Note the advantages of some groups and which of them are skipped."""
        self._advantages.update(
            {int(group): values for group, values in receipt["advantages"].items()}
        )
        self._skipped.update(receipt["skipped"])

    def add_metrics(self, metrics: dict[str, float]) -> None:
        """Note what the update measured."""
        self._metrics.update(metrics)

    def _add_seconds(self, kind: str, fragment: Fragment, receipt: dict[str, Any]) -> None:
        seconds = receipt["ended"] - receipt["started"]
        self._seconds[kind, fragment] = self._seconds.get((kind, fragment), 0.0) + seconds

    @property
    def step_seconds(self) -> float:
        """Median seconds of one denoising step of a fragment."""
        return median(self._step_seconds)

    def record(self, seconds: float, steps_per_task: int) -> IterationRecord:
        """Return the record of the finished iteration."""
        metrics = {
            **self._metrics,
            **self._reward_metrics(),
            **self._time_metrics(seconds),
            "orchestration/steps_per_task": float(steps_per_task),
            "staleness/max": 0.0,  # the barrier: every sample is of the version it trains
        }
        return IterationRecord(
            iteration=self._round.index,
            version=self._session.version,
            seconds=seconds,
            metrics=metrics,
            samples=[row for fragment in sorted(self._rewards) for row in self._rows(fragment)],
            spans=sorted(self._spans, key=lambda span: span.started),
        )

    def _rows(self, fragment: Fragment) -> list[SampleRow]:
        rewards, logprobs = self._rewards[fragment], self._logprobs[fragment]
        return [
            SampleRow(
                iteration=self._round.index,
                group=fragment.group,
                sample=sample,
                prompt=self._round.prompts[fragment.group],
                seed=self._session.config.seed,
                policy_version=self._version,
                worker=self._workers[fragment],
                reward=rewards["reward"][row],
                rewards={n: values[row] for n, values in rewards.items() if n != "reward"},
                advantage=self._advantages[fragment.group][sample],
                trained=fragment.group not in self._skipped,
                steps=sorted(logprobs),
                behaviour_logprobs=[logprobs[step][row] for step in sorted(logprobs)],
                denoise_seconds=self._seconds["denoise", fragment],
                score_seconds=self._seconds["score", fragment],
            )
            for row, sample in enumerate(fragment.samples)
        ]

    def _reward_metrics(self) -> dict[str, float]:
        groups: dict[int, list[float]] = {}
        components: dict[str, list[float]] = {}
        for fragment in sorted(self._rewards):
            for name, values in self._rewards[fragment].items():
                components.setdefault(name, []).extend(values)
            groups.setdefault(fragment.group, []).extend(self._rewards[fragment]["reward"])
        total = components.pop("reward")
        return {
            "reward/mean": mean(total),
            "reward/std": mean(pstdev(values) for values in groups.values()),
            **{f"reward/{name}": mean(values) for name, values in components.items()},
            "groups/zero_variance": float(len(self._skipped)),
        }

    def _time_metrics(self, seconds: float) -> dict[str, float]:
        num_samples = sum(len(rewards["reward"]) for rewards in self._rewards.values())
        devices = self._session.devices
        busy = {device.name: 0.0 for device in devices}
        for span in self._spans:
            busy[span.device] += span.ended - span.started
        return {
            "time/iteration_seconds": seconds,
            "time/rollout_seconds": self._extent("encode", "denoise", "score"),
            "time/train_seconds": self._extent(*TRAINING_KINDS),
            "time/push_seconds": self._extent("push"),
            "throughput/samples_per_second": num_samples / seconds,
            "throughput/samples_per_device_second": num_samples / seconds / len(devices),
            **{f"device/{name}/busy_fraction": value / seconds for name, value in busy.items()},
        }

    def _extent(self, *kinds: str) -> float:
        """Return the seconds from the first start to the last end of some kinds of task."""
        spans = [span for span in self._spans if span.kind in kinds]
        if not spans:
            return 0.0
        return max(span.ended for span in spans) - min(span.started for span in spans)
