"""Collect what the receipts of an iteration say of its samples, and make their rows."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any

import numpy as np

from digen_core.control.protocol import Batch, Fragment
from digen_core.records import Picture, SampleRow
from digen_core.rewards.failures import settle
from digen_core.rewards.sums import joined
from digen_core.training.advantages import Advantages
from digen_core.training.preferences import preference_metrics
from digen_core.training.screening import rank_correlation, sound_candidates
from digen_core.transport.images import keep_source, name_of
from flows.runtime.context import RunContext
from flows.runtime.iterations.reward_metrics import reward_metrics
from flows.runtime.iterations.round import Round
from tasks.receipts import Denoised, Ran, Receipt, Scored
from tasks.views.pictures import thumbnail


@dataclass(frozen=True, slots=True)
class Screened:
    """The candidates that the samples of a group stand for."""

    chosen: tuple[int, ...]
    rewards: np.ndarray  # of all candidates, float64 [C]
    mean: float  # of those that lack no number


class SampleRecorder:
    """What the receipts of one iteration said of its samples, by fragment and by group."""

    def __init__(self, run: RunContext, round_: Round) -> None:
        self._run = run
        self._round = round_
        self._logprobs: dict[Fragment, dict[int, list[float]]] = {}
        self._step_values: dict[Fragment, dict[int, list[float]]] = {}  # if something is asked
        self._workers: dict[Fragment, str] = {}
        self._versions: dict[Fragment, int] = {}  # that generated
        self._rewards: dict[Fragment, dict[str, list[float]]] = {}
        self._pictures: dict[Fragment, list[bytes]] = {}
        self._seconds: dict[tuple[str, Fragment], float] = {}
        self._step_seconds: list[float] = []
        self._advantages: dict[int, list[float]] = {}
        self._skipped: set[int] = set()
        self._replaced: set[int] = set()  # groups without signal that others took the place of
        self._nonfinite: dict[int, dict[int, str]] = {}  # group -> sample -> what of it
        self._dropped: set[int] = set()  # groups that lack a number
        self._chosen: dict[int, tuple[int, ...]] = {}  # samples by group, if not all are trained
        self._screened: dict[int, Screened] = {}  # by group of samples

    def add_sampled(self, batch: Batch, receipt: Receipt[Denoised]) -> None:
        """Note what a denoise task recorded of a batch."""
        ran, facts = receipt.ran, receipt.facts
        for fragment, sampled in zip(batch.fragments, facts.sampled, strict=True):
            self._logprobs.setdefault(fragment, {}).update(sampled.logprobs)
            self._step_values.setdefault(fragment, {}).update(sampled.step_values)
            self._workers[fragment] = ran.device
            self._versions[fragment] = facts.version
            self._add_seconds("denoise", fragment, ran)
            self.add_nonfinite(fragment, sampled.nonfinite)
        if not ran.compile_seconds:
            self._step_seconds.append(facts.seconds_per_step)

    def add_rewards(self, fragment: Fragment, receipt: Receipt[Scored]) -> None:
        """Note the rewards of a fragment."""
        self._rewards[fragment] = dict(receipt.facts.rewards)  # missing scores are filled in
        self._pictures[fragment] = receipt.facts.pictures
        self._add_seconds("score", fragment, receipt.ran)

    def _add_seconds(self, kind: str, fragment: Fragment, ran: Ran) -> None:
        self._seconds[kind, fragment] = self._seconds.get((kind, fragment), 0.0) + ran.seconds

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

    def add_screened(self, group: int, samples: int, chosen: tuple[int, ...]) -> None:
        """Note what is known of candidates of which some were chosen; they have no rows.

        Args:
            group: of the candidates, whose rewards are settled.
            samples: the group of the samples that stand for those that were chosen.
            chosen: by their index.
        """
        columns = self._columns_of(group)
        sound = sound_candidates(self._run.config, columns, self.nonfinite_in(group))
        rewards = columns["reward"]
        self._screened[samples] = Screened(chosen, rewards, float(rewards[sound].mean()))
        for own in (self._logprobs, self._step_values, self._rewards, self._pictures):
            for fragment in [fragment for fragment in own if fragment.group == group]:
                del own[fragment]

    def add_unscreened(self, group: int) -> None:
        """Note a group of candidates of which too few have their numbers: it is dropped.

        Its rows stay, and say which of them lack some.
        """
        self.add_dropped([group])
        self._skipped.add(group)
        self._advantages[group] = [0.0] * len(self._columns_of(group)["reward"])

    def rewards_of(self, group: int) -> dict[str, np.ndarray]:
        """Return what scoring said of a group that is complete, [G] by name.

        Scores of the prompt's row are added, scores are ranked, and those that are missing filled
        in, here: only now are all fragments' there.
        """
        parts = self._parts_of(group)
        found = [self._rewards[fragment] for fragment in parts]
        given = self._round.prompts[group].scores
        settled = settle(self._columns_of(group), self._run.config.rewards, given)
        starts = np.cumsum([fragment.num_samples for fragment in parts])[:-1]
        for name, values in settled.items():
            for part, piece in zip(found, np.split(values, starts), strict=True):
                part[name] = piece.tolist()
        return settled

    def _columns_of(self, group: int) -> dict[str, np.ndarray]:
        return joined([self._rewards[fragment] for fragment in self._parts_of(group)])

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

    @property
    def step_seconds(self) -> float | None:
        """Median seconds of one denoising step of a batch; None if all were compiled in."""
        return median(self._step_seconds) if self._step_seconds else None

    @property
    def num_samples(self) -> int:
        """Samples that have been scored."""
        return sum(len(rewards["reward"]) for rewards in self._rewards.values())

    @property
    def versions(self) -> list[int]:
        """The version that generated each sample."""
        return [self._versions[fragment] for fragment in self._rewards for _ in fragment.samples]

    def pictures(self) -> list[Picture]:
        """Return the samples that pages show, beside what they are edits of."""
        return [picture for fragment in sorted(self._pictures) for picture in self._shown(fragment)]

    def _shown(self, fragment: Fragment) -> list[Picture]:
        group, prompt = fragment.group, self._round.prompts[fragment.group]
        rewards, jpegs = self._rewards[fragment]["reward"], self._pictures[fragment]
        height, width, _ = self._run.config.size_of(self._round.index, group)
        sources = tuple(thumbnail(image.pixels(height, width)) for image in prompt.images if jpegs)
        return [
            Picture(group, prompt.text, reward, jpeg, sources)
            for reward, jpeg in zip(rewards, jpegs, strict=False)
        ]

    def rows(self) -> list[SampleRow]:
        """Return what is kept of each sample."""
        return [row for fragment in sorted(self._rewards) for row in self._rows(fragment)]

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
                **self._candidate_of(fragment.group, sample),
            )
            for row, sample in enumerate(fragment.samples)
        ]

    def _candidate_of(self, group: int, sample: int) -> dict[str, Any]:
        """Return the fields that say which candidate a sample stands for, if there were some."""
        screened = self._screened.get(group)
        if screened is None:
            return {}
        candidate = screened.chosen[sample]
        return {"candidate": candidate, "screened_reward": float(screened.rewards[candidate])}

    def _images_of(self, group: int) -> dict[int, str]:
        """Return the files of a group's images that the config has kept, by sample.

        Of candidates none is.
        """
        if self._round.screens(group):
            return {}
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

    def sample_metrics(self) -> dict[str, float]:
        """Return the metrics of rewards, and of samples that lack a number."""
        groups = {
            group: self._columns_of(group) for group in sorted({own.group for own in self._rewards})
        }
        asked: dict[int, list[float]] = {}
        for fragment, steps in self._step_values.items():
            asked.setdefault(fragment.group, []).extend(v for own in steps.values() for v in own)
        name = "margin" if self._run.config.algorithm.needs_margins else "kl"
        return {
            **reward_metrics(self._run.config.rewards, groups, self._dropped, **{name: asked}),
            **self._preference_metrics(groups),
            "groups/zero_variance": float(len(self._skipped - self._dropped)),
            **({"groups/refilled": float(len(self._replaced))} if self._round.refill else {}),
            **self._screening_metrics(groups),
            "numerics/nonfinite_samples": float(sum(map(len, self._nonfinite.values()))),
            "numerics/dropped_groups": float(len(self._dropped)),
        }

    def _screening_metrics(
        self, groups: Mapping[int, Mapping[str, np.ndarray]]
    ) -> dict[str, float]:
        if not self._screened:
            return {}
        ranks = [
            rank_correlation(own.rewards[[*own.chosen]], groups[group]["reward"])
            for group, own in self._screened.items()
            if group in groups and group not in self._dropped
        ]
        known = [own for own in ranks if own is not None]
        found = {"screening/reward": fmean(own.mean for own in self._screened.values())}
        return found | ({"screening/rank_correlation": fmean(known)} if known else {})

    def _preference_metrics(self, groups: Mapping[int, dict[str, np.ndarray]]) -> dict[str, float]:
        if not any(self._step_values.values()):
            return {}
        kept = [group for group in groups if group not in self._dropped]
        rewards = {group: groups[group]["reward"] for group in kept}
        margins = {group: self.step_values_of(group) for group in kept}
        return preference_metrics(self._run.config.algorithm, rewards, margins)
