"""Which of two samples of a group is better: win rates from a vision-language model.

The score of sample i is its win rate, 1 / k times the sum over its k opponents j of 1 if i is
better than j, of 1/2 if neither is, else of 0. With all others as opponents it is the reward of
Pref-GRPO (arXiv 2508.20751). A pair that is shown in both orders counts the mean of the two.
"""

from collections.abc import Mapping, Sequence
from functools import cache, partial
from typing import Final
from zlib import crc32

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from digen_core.config.rewards.judge_template import load_pair_template
from digen_core.config.rewards.judges import PairwiseConfig
from digen_core.data.prompts import Metadata
from digen_core.rewards.attempts import PartialError
from digen_core.rewards.judge.answers import preference_in
from digen_core.rewards.judge.asking import Asker, Outcome, Part
from digen_core.rewards.judge.judge import shown_sources
from digen_core.rewards.relative import NO_OPPONENT

Array = NDArray[np.float64]
Pair = tuple[int, int]

TIE: Final = 0.5


class Pairwise:
    """Scores the samples of a group by asking a model about pairs of them."""

    def __init__(self, config: PairwiseConfig, device: torch.device) -> None:
        """Read the template; open no connection yet.

        Args:
            config: of the reward.
            device: unused.

        Raises:
            UserError: the template or the url cannot be used, or the token's environment variable
                is not set.
        """
        self._config, self._template = config, load_pair_template(config.template)
        self._asker = Asker(config, self._template, preference_in, "pairs")

    def __call__(
        self,
        samples: Tensor,
        prompts: Sequence[str],
        metadata: Sequence[Metadata] = (),
        sources: Tensor | None = None,
        more_sources: Sequence[Tensor] | None = None,
    ) -> dict[str, Tensor]:
        """Compare images [G, 3, H, W] or videos [G, F, 3, H, W]: float64 [G] for each component.

        Args:
            samples: of one group.
            prompts: of each: G times the same.
            metadata: of each, likewise.
            sources: images [G, 3, H, W] that they are edits of, shown first if the template says
                so.
            more_sources: that each prompt has beside, [n, 3, H, W], shown behind those.

        Raises:
            PartialError: pairs have no answer, or one has none and that ends the run.
            UserError: the template names a column that the metadata have not, or there are no
                sources for it to show.
        """
        videos = samples if samples.ndim == 5 else samples[:, None]
        before = shown_sources(self._template, self._config.template, sources, more_sources)
        system, user = self._template.texts(prompts[0], metadata[0] if metadata else {})

        @cache
        def images(sample: int) -> list[Part]:
            return self._asker.images(self._asker.frames_of(videos[sample]))

        def body(pair: Pair) -> bytes:
            content = [] if before is None else self._asker.images(before[0])
            for title, sample in zip(self._template.titles, pair, strict=True):
                content += [{"type": "text", "text": title}] if title else []
                content += images(sample)
            return self._asker.body([*content, {"type": "text", "text": user}], system)

        config = self._config
        pairs = drawn_pairs(len(samples), config.opponents, (config.seed, prompts[0]))
        if config.orders == "both":
            pairs = [shown for pair in pairs for shown in (pair, pair[::-1])]
        outcomes = self._asker.outcomes([partial(body, pair) for pair in pairs])
        found = self._compared(len(samples), pairs, outcomes)
        if errors := [outcome for outcome in outcomes if isinstance(outcome, Exception)]:
            scores = torch.from_numpy(self._with_gaps(found["score"], pairs, outcomes))
            raise PartialError(str(errors[0]), scores) from errors[0]
        return {name: torch.from_numpy(values) for name, values in found.items()}

    def _compared(
        self, count: int, pairs: Sequence[Pair], outcomes: Sequence[Outcome | None]
    ) -> dict[str, Array]:
        """Return what each sample's comparisons come to; one without an answer is a tie.

        Args:
            count: samples.
            pairs: first and second sample that were shown.
            outcomes: of each.
        """
        answers = [own if isinstance(own, Mapping) else {"first": TIE} for own in outcomes]
        first = [self._worth(answer["first"]) for answer in answers]
        won: list[dict[int, list[float]]] = [{} for _ in range(count)]  # by opponent
        shown_first: list[list[float]] = [[] for _ in range(count)]
        answered: list[list[float]] = [[] for _ in range(count)]
        for (one, other), worth, answer in zip(pairs, first, answers, strict=True):
            won[one].setdefault(other, []).append(worth)
            won[other].setdefault(one, []).append(1 - worth)
            for sample in (one, other):
                shown_first[sample].append(worth)
                answered[sample].append(answer.get("answered", 1.0))
        shares = [[float(np.mean(own)) for own in against.values()] for against in won]
        found = {
            "score": [_mean(own, NO_OPPONENT) for own in shares],
            "ties": [_mean([float(share == TIE) for share in own], 0.0) for own in shares],
            "first": [_mean(own, TIE) for own in shown_first],
        }
        if any("answered" in answer for answer in answers):
            found["answered"] = [_mean(own, 1.0) for own in answered]
        return {name: np.array(values) for name, values in found.items()}

    def _worth(self, preference: float) -> float:
        """Return what the first sample is given of a comparison."""
        if self._config.counts == "probabilities":
            return preference
        return 1.0 if preference > TIE else 0.0 if preference < TIE else TIE

    def _with_gaps(
        self, scores: Array, pairs: Sequence[Pair], outcomes: Sequence[Outcome | None]
    ) -> Array:
        """Return scores with NaN for samples that have none.

        Where a sample without a score drops its group, one comparison that is missing suffices, as
        nothing is to be filled in; else all of them have to be.
        """
        asked: list[list[bool]] = [[] for _ in scores]
        for pair, outcome in zip(pairs, outcomes, strict=True):
            for sample in pair:
                asked[sample].append(isinstance(outcome, Mapping))
        enough = any if self._config.on_failure == "neutral" else all
        return np.where([enough(own) for own in asked], scores, np.nan)


def drawn_pairs(count: int, opponents: int | None, seed: tuple[int, str]) -> list[Pair]:
    """Return which samples are compared, the one that is shown first before the other.

    The samples sit in a ring in an order that is drawn, and each is compared with its neighbours up
    to a distance. It comes first with those ahead of it and second with those behind: as often, so
    that what a judge gives to the first place is given to all alike.

    Args:
        count: samples.
        opponents: of each; None, or more than there are: all others. An odd number of an odd number
            of samples is one less.
        seed: and the prompt, that the order is drawn from.
    """
    number, prompt = seed
    random = np.random.default_rng([number, crc32(prompt.encode())])
    ring = random.permutation(count).tolist()
    most = count - 1 if opponents is None else min(opponents, count - 1)
    pairs = [
        (ring[place], ring[(place + ahead) % count])
        for ahead in range(1, most // 2 + 1)
        for place in range(count)
    ]
    if most % 2 and count % 2 == 0:  # and with the one across
        half = count // 2
        across = [(ring[place], ring[place + half]) for place in range(half)]
        pairs += [pair if place % 2 else pair[::-1] for place, pair in enumerate(across)]
    return pairs


def _mean(values: Sequence[float], default: float) -> float:
    return float(np.mean(values)) if values else default
