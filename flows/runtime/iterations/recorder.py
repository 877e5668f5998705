"""Collect the receipts of an iteration and make its record: sample rows, spans and metrics."""

from collections.abc import Collection, Mapping, Sequence
from math import ceil
from statistics import fmean, median
from time import time

import numpy as np

from digen_core.control.protocol import Fragment
from digen_core.records import Crossing, IterationRecord, Picture, SampleRow, Span
from digen_core.rewards.failures import settle
from digen_core.sim.links import link_metrics
from digen_core.trace.gaps import idle_gaps
from digen_core.trace.metrics import idle_shares, schedule_metrics
from digen_core.trace.prediction import read_prediction
from digen_core.trace.prices import cost_metrics
from digen_core.trace.usage import Usage, energy_metrics, usage_metrics
from digen_core.trace.utilization import mfu_metrics
from digen_core.trace.windows import Window, iteration_windows
from digen_core.training.advantages import Advantages
from digen_core.transport.images import keep_source, name_of
from flows.runtime.context import RunContext
from flows.runtime.iterations.reward_metrics import reward_metrics
from flows.runtime.iterations.round import Ended, Round
from flows.runtime.iterations.update_metrics import update_metrics
from tasks.receipts import Denoised, Ran, Receipt, Received, Scored, Updated
from tasks.views.pictures import thumbnail

TRAINING_KINDS = ("train", "reduce", "step")


class IterationRecorder:
    """What the receipts of one iteration said."""

    def __init__(self, run: RunContext, round_: Round) -> None:
        self._run = run
        self._round = round_
        self._updates: list[Updated] = []  # those that made a version
        self._num_skipped = 0  # updates, as a number is NaN or infinite
        self._spans: list[Span] = []
        self._crossings: list[Crossing] = []
        self._logprobs: dict[Fragment, dict[int, list[float]]] = {}
        self._step_values: dict[Fragment, dict[int, list[float]]] = {}  # if something is asked
        self._workers: dict[Fragment, str] = {}
        self._versions: dict[Fragment, int] = {}  # that generated
        self._rewards: dict[Fragment, dict[str, list[float]]] = {}
        self._pictures: dict[Fragment, list[bytes]] = {}
        self._seconds: dict[tuple[str, Fragment], float] = {}
        self._advantages: dict[int, list[float]] = {}
        self._skipped: set[int] = set()
        self._replaced: set[int] = set()  # groups without signal that others took the place of
        self._nonfinite: dict[int, dict[int, str]] = {}  # group -> sample -> what of it
        self._dropped: set[int] = set()  # groups that lack a number
        self._chosen: dict[int, tuple[int, ...]] = {}  # samples by group, if not all are trained
        self._step_seconds: list[float] = []
        self._usage: dict[str, list[Usage]] = {}  # by device

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

    def add_logprobs(self, fragment: Fragment, receipt: Receipt[Denoised]) -> None:
        """Note what a denoise task recorded."""
        ran, facts = receipt.ran, receipt.facts
        self._logprobs.setdefault(fragment, {}).update(facts.logprobs)
        self._step_values.setdefault(fragment, {}).update(facts.step_values)
        self._workers[fragment] = ran.device
        self._versions[fragment] = facts.version
        self._add_seconds("denoise", fragment, ran)
        if not ran.compile_seconds:
            self._step_seconds.append(facts.seconds_per_step)

    def add_rewards(self, fragment: Fragment, receipt: Receipt[Scored]) -> None:
        """Note the rewards of a fragment."""
        self._rewards[fragment] = dict(receipt.facts.rewards)  # missing scores are filled in
        self._pictures[fragment] = receipt.facts.pictures
        self._add_seconds("score", fragment, receipt.ran)

    def add_nonfinite(self, fragment: Fragment, found: Mapping[int, str]) -> None:
        """Note samples that became NaN or infinite, by their index in the group."""
        for sample, what in found.items():
            self._nonfinite.setdefault(fragment.group, {}).setdefault(sample, what)

    def nonfinite_in(self, group: int) -> dict[int, str]:
        """Return what of a group's samples is NaN or infinite, by sample."""
        return self._nonfinite.get(group, {})

    def add_dropped(self, groups: Collection[int]) -> None:
        """Note groups that are not trained as they lack a number."""
        self._dropped.update(groups)

    def rewards_of(self, group: int) -> dict[str, np.ndarray]:
        """Return what scoring said of a group that is complete, [G] by name.

        Scores are ranked, and those that are missing filled in, here: only now are all fragments'
        there.
        """
        parts = self._parts_of(group)
        found = [self._rewards[fragment] for fragment in parts]
        settled = settle(self._columns_of(group), self._run.config.rewards)
        starts = np.cumsum([fragment.num_samples for fragment in parts])[:-1]
        for name, values in settled.items():
            for part, piece in zip(found, np.split(values, starts), strict=True):
                part[name] = piece.tolist()
        return settled

    def _columns_of(self, group: int) -> dict[str, np.ndarray]:
        found = [self._rewards[fragment] for fragment in self._parts_of(group)]
        return {name: np.concatenate([part[name] for part in found]) for name in found[0]}

    def step_values_of(self, group: int) -> np.ndarray:
        """Return what was asked of the trained steps, [G, K]: divergences, or margins."""
        rows = [self._step_values[fragment] for fragment in self._parts_of(group)]
        return np.concatenate([[row[step] for step in sorted(row)] for row in rows], axis=1).T

    def _parts_of(self, group: int) -> list[Fragment]:
        return sorted(fragment for fragment in self._rewards if fragment.group == group)

    def add_advantages(self, found: Advantages) -> None:
        """Note the advantages of some groups, and who of them is trained."""
        for group, values in found.values.items():
            self._advantages[group] = values.reshape(len(values), -1).mean(axis=1).tolist()
        self._skipped.update(found.skipped)
        self._chosen.update(found.chosen)

    def add_replaced(self, groups: Sequence[int]) -> None:
        """Note groups without signal that others take the place of."""
        self._replaced.update(groups)

    def add_update(self, update: Updated) -> None:
        """Note what an update measured, and the version that it made."""
        self._updates.append(update)

    def skip_update(self) -> None:
        """Note that an update was not made, as a number is NaN or infinite."""
        self._num_skipped += 1

    @property
    def has_updated(self) -> bool:
        """Whether an update was made."""
        return bool(self._updates)

    @property
    def is_barren(self) -> bool:
        """Whether there was no update because of what is NaN or infinite, or lacks a score."""
        return not self._updates and bool(self._num_skipped or self._dropped)

    def _add_seconds(self, kind: str, fragment: Fragment, ran: Ran) -> None:
        self._seconds[kind, fragment] = self._seconds.get((kind, fragment), 0.0) + ran.seconds

    @property
    def step_seconds(self) -> float | None:
        """Median seconds of one denoising step of a fragment; None if all were compiled in."""
        return median(self._step_seconds) if self._step_seconds else None

    @property
    def _groups(self) -> set[int]:
        return {fragment.group for fragment in self._rewards}

    @property
    def _num_samples(self) -> int:
        return sum(len(rewards["reward"]) for rewards in self._rewards.values())

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
            **self._reward_metrics(),
            "numerics/nonfinite_samples": float(sum(map(len, self._nonfinite.values()))),
            "numerics/dropped_groups": float(len(self._dropped)),
            "numerics/skipped_updates": float(self._num_skipped),
            **self._time_metrics(ended.seconds),
            **schedule_metrics(gaps, devices, window, self._num_samples, self._predicted_seconds),
            **self._staleness_metrics(),
            **self._usage_metrics(),
            **link_metrics(self._crossings),
            **self._mfu_metrics(window),
            **self._cost_metrics(window, ended),
            "orchestration/steps_per_task": float(steps_per_task),
            **self._worker_metrics(),
        }
        return IterationRecord(
            iteration=index,
            version=self._updates[-1].version if self._updates else ended.version,
            seconds=ended.seconds,
            metrics=metrics,
            samples=[row for fragment in sorted(self._rewards) for row in self._rows(fragment)],
            spans=sorted(self._spans, key=lambda span: span.started),
            crossings=self._crossings,
            idle=idle_shares(gaps, devices, window),
            pictures=[
                picture for fragment in sorted(self._pictures) for picture in self._shown(fragment)
            ],
        )

    def _shown(self, fragment: Fragment) -> list[Picture]:
        """Return the samples of a fragment that pages show, beside what they are edits of."""
        group, prompt = fragment.group, self._round.prompts[fragment.group]
        rewards, jpegs = self._rewards[fragment]["reward"], self._pictures[fragment]
        height, width, _ = self._run.config.size_of(self._round.index, group)
        sources = tuple(thumbnail(image.pixels(height, width)) for image in prompt.images if jpegs)
        return [
            Picture(group, prompt.text, reward, jpeg, sources)
            for reward, jpeg in zip(rewards, jpegs, strict=False)
        ]

    def _rows(self, fragment: Fragment) -> list[SampleRow]:
        rewards, logprobs = self._rewards[fragment], self._logprobs[fragment]
        images, prompt = self._images_of(fragment.group), self._round.prompts[fragment.group]
        sources = None
        if prompt.images and self._run.config.tracking.keep_images != "none":
            sources = [keep_source(self._run.run_dir, image) for image in prompt.images]
        return [
            SampleRow(
                iteration=self._round.index,
                group=fragment.group,
                sample=sample,
                prompt=prompt.text,
                seed=self._run.config.seed,
                policy_version=self._versions[fragment],
                worker=self._workers[fragment],
                reward=rewards["reward"][row],
                rewards={n: values[row] for n, values in rewards.items() if n != "reward"},
                advantage=self._advantage_of(fragment.group, sample),
                trained=self._is_trained(fragment.group, sample),
                steps=sorted(logprobs),
                behaviour_logprobs=[logprobs[step][row] for step in sorted(logprobs)],
                denoise_seconds=self._seconds["denoise", fragment],
                score_seconds=self._seconds["score", fragment],
                metadata=prompt.metadata,
                image=images.get(sample),
                source_images=sources,
                nonfinite=self.nonfinite_in(fragment.group).get(sample),
            )
            for row, sample in enumerate(fragment.samples)
        ]

    def _images_of(self, group: int) -> dict[int, str]:
        """Return the files of a group's images that the config has kept, by sample."""
        tracking = self._run.config.tracking
        parts = [self._rewards[fragment]["reward"] for fragment in self._parts_of(group)]
        rewards = np.concatenate(parts)
        kept = {
            "none": (),
            "extremes": {int(rewards.argmax()), int(rewards.argmin())},
            "all": range(len(rewards)),
        }[tracking.keep_images]
        return {s: name_of(self._round.index, group, s, tracking.image_format) for s in kept}

    def _is_trained(self, group: int, sample: int) -> bool:
        if group in self._skipped or group in self._replaced:
            return False
        return sample in self._chosen.get(group, (sample,))

    def _advantage_of(self, group: int, sample: int) -> float:
        return 0.0 if group in self._replaced else self._advantages[group][sample]

    def _reward_metrics(self) -> dict[str, float]:
        groups = {group: self._columns_of(group) for group in sorted(self._groups)}
        asked: dict[int, list[float]] = {}
        for fragment, steps in self._step_values.items():
            asked.setdefault(fragment.group, []).extend(v for own in steps.values() for v in own)
        name = "margin" if self._run.config.algorithm.needs_margins else "kl"
        return {
            **reward_metrics(self._run.config.rewards, groups, self._dropped, **{name: asked}),
            "groups/zero_variance": float(len(self._skipped - self._dropped)),
            **({"groups/refilled": float(len(self._replaced))} if self._round.refill else {}),
        }

    def _staleness_metrics(self) -> dict[str, float]:
        """Return the versions between the one trained and the one that generated a sample.

        And the iterations between the version with which this one began, and that one.
        """
        stale = [
            update.version - 1 - self._versions[fragment]
            for update in self._updates
            for fragment in self._rewards
            for _ in fragment.samples
        ]
        if not stale:
            return {}
        begun_with = self._updates[0].version - 1
        per_iteration = self._run.config.train.updates_per_iteration
        behind = [
            ceil((begun_with - self._versions[fragment]) / per_iteration)
            for fragment in self._rewards
            for _ in fragment.samples
        ]
        return {
            "staleness/mean": fmean(stale),
            "staleness/max": float(max(stale)),
            "staleness/iterations_mean": fmean(behind),
            "staleness/iterations_max": float(max(behind)),
        }

    def _usage_metrics(self) -> dict[str, float]:
        parts = [usage_metrics(device, used) for device, used in self._usage.items()]
        gangs = {device.name for device in self._run.fleet.devices if device.size > 1}
        parts.append(energy_metrics(self._usage, gangs, self._num_samples))
        return {name: value for part in parts for name, value in part.items()}

    def _mfu_metrics(self, window: Window) -> dict[str, float]:
        arithmetic = self._run.progress.arithmetic
        if arithmetic is None:
            return {}
        return mfu_metrics(arithmetic, self._spans, self._run.fleet.devices, window)

    def _cost_metrics(self, window: Window, ended: Ended) -> dict[str, float]:
        if not self._run.config.cluster.price_per_hour:
            return {}
        price = ended.price_per_second
        return cost_metrics(price, window.seconds, self._num_samples, ended.spent)

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
            "time/rollout_seconds": self._extent("encode", "denoise", "score"),
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
