"""Records of a run: rows that trackers, the terminal and the data set are made of."""

from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Final, Literal, Self

from pydantic import Field, model_validator

from digen_core.data.prompts import Metadata
from digen_core.maths.statistics import (
    Change,
    Share,
    pair_wins,
    paired_change,
    prompt_wins,
    share_of,
    standard_error,
    unpaired_change,
)
from digen_core.strict import Strict

FIRST: Final = "before"
LAST: Final = "after"
"""Tags of a run's first evaluation, and of its last."""

SpanKind = Literal[
    "encode",
    "denoise",
    "samples",
    "score",
    "train",
    "reduce",
    "step",
    "copy",
    "publish",
    "push",
    "switch",
]
GENERATING: Final[tuple[SpanKind, ...]] = ("denoise", "samples")
"""Kinds of what takes a fragment to its clean latents."""


@dataclass(frozen=True, slots=True)
class Span:
    """One piece of work on one device, in any of the bodies that a schedule runs in.

    Times are seconds: of the devices' wall clock (epoch) in a run, of the virtual clock in a
    simulation. A field that does not apply is -1.
    """

    iteration: int
    task: str  # as in Prefect: "denoise g03 f1 t05"
    kind: SpanKind
    device: str
    queued: float  # when it was asked for
    started: float
    ended: float
    group: int = -1
    fragment: int = -1
    first_step: int = -1
    end_step: int = -1  # one past the last denoising step
    version: int = -1  # of the policy that it used or loaded
    num_items: int = -1  # samples of a batch or fragment, pairs of a pack
    cost: float = 1.0  # of one, in those of the mean size
    num_bytes: int = -1  # that other devices sent for it
    compile_seconds: float = 0.0  # of its time, that torch.compile took
    beside: tuple[tuple[int, int], ...] = ()  # (group, fragment) of the others of its batch

    @property
    def fragments(self) -> tuple[tuple[int, int], ...]:
        """(group, fragment) of all that it is about; none where that does not apply."""
        return ((self.group, self.fragment), *self.beside) if self.fragment >= 0 else ()


@dataclass(frozen=True, slots=True)
class Crossing:
    """Bytes that went from one site to another."""

    sites: frozenset[str]  # two
    num_bytes: float
    started: float  # seconds, as of spans
    ended: float
    version: int | None = None  # that was pushed; None: they are something else


@dataclass(frozen=True, slots=True)
class SampleRow:
    """One generated sample, as it is kept in the run's Parquet data set."""

    iteration: int
    group: int
    sample: int
    prompt: str
    seed: int  # of the run; with iteration, group and sample it names the noise
    policy_version: int
    worker: str
    reward: float  # weighted sum
    rewards: dict[str, float]  # "<reward>/<component>" -> value
    advantage: float  # 0 in a skipped group
    trained: bool  # false in a group of equal rewards, and for who is not of its best n
    steps: list[int]  # noisy steps, in order
    behaviour_logprobs: list[float]  # one per noisy step, mean over the latent's elements
    denoise_seconds: float  # of the batches that the sample was in
    score_seconds: float  # of the sample's fragment
    metadata: Metadata = field(default_factory=dict)  # what else the prompt's row says
    image: str | None = None  # file of the decoded sample, seen from the run's folder, if kept
    source_images: list[str] | None = None  # those of what it is an edit of, likewise
    nonfinite: str | None = None  # what of it is NaN or infinite: then 0 stands in its place
    candidate: int | None = None  # of its prompt, whose noise it has; None: it has its own
    screened_reward: float | None = None  # of that candidate


SHOWN_SAMPLES: Final = 4
"""Of a group on an iteration's page, at most."""


@dataclass(frozen=True, slots=True)
class Picture:
    """A sample as it is shown on a page."""

    group: int
    prompt: str
    reward: float
    jpeg: bytes
    sources: tuple[bytes, ...] = ()  # what it is an edit of, as JPEG


@dataclass(frozen=True, slots=True)
class IterationRecord:
    """One finished iteration."""

    iteration: int  # 0-based
    version: int  # of the policy after it
    seconds: float  # wall clock
    metrics: dict[str, float]  # by stable path-like names, see docs/algorithms.md
    samples: list[SampleRow] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    crossings: list[Crossing] = field(default_factory=list)
    idle: dict[str, dict[str, float]] = field(default_factory=dict)  # device -> cause -> share
    pictures: list[Picture] = field(default_factory=list)  # some of the samples
    timeline: "Future[bytes] | None" = None  # what the devices did, as PNG, if it is drawn


class Wins(Strict):
    """How often an evaluation scores higher than another one; a tie is half a win."""

    prompts: Share
    """Of the prompts, by the means of their samples."""

    pairs: Share | None
    """Of the pairs of samples that began from the same noise; None: the evaluations share none."""


class EvaluationReport(Strict):
    """Noiseless samples of one version on one set of prompts, scored."""

    version: int
    num_prompts: int
    num_samples: int
    rewards: dict[str, float]
    """Mean of each reward component over all samples, and `reward`, their weighted sum; of a reward
    with tasks also that of each task, and `NAME/overall`; of one with questions the share of those
    of each category that are answered yes, of one of attributes the mean of each."""

    by_prompt: dict[str, list[float | None]] = Field(default_factory=dict)
    """The same of each prompt, in order; null where none of its samples has a score, or the prompt
    is of another task."""

    by_sample: dict[str, list[list[float | None]]] = Field(default_factory=dict)
    """What each sample of each prompt has, in order, of what can be won; null: no score. Reports of
    older runs lack it and the four below."""

    prompts_hash: str = ""
    """Of the prompts, in order."""

    sampled_as: str = ""
    """Names how samples were made, noise included: whose are equal differ by their version."""

    judged_by: dict[str, str] = Field(default_factory=dict)
    """Of each component that has samples' values, what made them: where two are equal, the values
    can be compared."""

    wins: dict[str, Wins] = Field(default_factory=dict)
    """Of components, over the run's first evaluation, if that is of version 0, and of the same
    prompts, noise and settings."""

    @model_validator(mode="after")
    def _has_samples_of_each_prompt(self) -> Self:
        if self.judged_by.keys() != self.by_sample.keys():
            raise ValueError("by_sample and judged_by are not of the same components")
        for name, samples in self.by_sample.items():
            if len(samples) != self.num_prompts:
                raise ValueError(f"by_sample has {len(samples)} prompts of {name}")
        return self

    def wins_over(self, other: "EvaluationReport", name: str) -> Wins | None:
        """Return how often a component is higher than in another evaluation.

        None if that is of other prompts or judged otherwise, or a report does not tell.

        Raises:
            ValueError: a score is NaN or infinite.
        """
        judges = self.judged_by.get(name), other.judged_by.get(name)
        if None in judges or judges[0] != judges[1] or self.prompts_hash != other.prompts_hash:
            return None
        own, others = self.by_sample[name], other.by_sample[name]
        prompts = share_of(prompt_wins(own, others))
        if prompts is None:
            return None
        is_paired = self.sampled_as == other.sampled_as
        return Wins(prompts=prompts, pairs=share_of(pair_wins(own, others)) if is_paired else None)

    def wins_over_base(self, first: "EvaluationReport") -> dict[str, Wins]:
        """Return by component how often it is higher than before training.

        Args:
            first: evaluation of the run.

        Returns:
            Nothing unless that is of version 0, and of the same prompts, noise and settings.
        """
        if first.version != 0 or self.sampled_as != first.sampled_as:
            return {}
        found = {name: self.wins_over(first, name) for name in self.by_sample}
        return {name: wins for name, wins in found.items() if wins and wins.pairs}

    def standard_error(self, name: str) -> float | None:
        """Return the standard error of a component's mean; None where it is not known."""
        means = [mean for mean in self.by_prompt.get(name, []) if mean is not None]
        return standard_error(means)

    def change_since(self, before: "EvaluationReport", name: str) -> Change | None:
        """Return how a component changed on the same prompts; None if one lacks it."""
        if name not in self.rewards or name not in before.rewards:
            return None
        value = self.rewards[name] - before.rewards[name]
        pair = before.by_prompt.get(name, []), self.by_prompt.get(name, [])
        if len(pair[0]) == len(pair[1]):
            return paired_change(*pair, value)
        return unpaired_change(value, before.standard_error(name), self.standard_error(name))


class RunReport(Strict):
    """What a finished run returns."""

    run_id: str
    run_dir: str
    version: int
    num_iterations: int
    seconds: float
    before: EvaluationReport | None
    """None: a damaged file held it."""
    after: EvaluationReport
    view: str
    """How to look at the run in MLflow."""
