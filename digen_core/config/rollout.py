"""How trajectories are sampled, and versions judged.

Importing this module must not import torch.
"""

from collections.abc import Sequence
from typing import Annotated, Final, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from digen_core.algorithms.base import Algorithm
from digen_core.config.prompts import PromptsConfig
from digen_core.maths.names import SolverName, TransitionName
from digen_core.strict import AtMost, Strict

Precision = Literal["model", "float8"]
"""What blocks compute in while samples are generated."""

_SAMPLES: Final = AtMost(65_536, "every sample is planned and held in memory")
_STEPS: Final = AtMost(1000, "models are trained with 1000 noise levels")

FIRST_LEVEL: Final = 0.99
"""Lowest noise level at which a trajectory may begin: Wan's and Sana's pipelines begin above it."""

FRAGMENT_TOKENS: Final = 8192
"""Most tokens of a fragment whose size is "auto": some thousand keep a GPU busy; eight images of
512 x 512 pixels are what the recipes for SD3.5 denoise together."""


def largest_fragment(group_size: int, workers: int, tokens: int) -> int:
    """Return the size of a fragment: a divisor of the group size.

    It is the largest that leaves every worker a fragment of each group (1 if there are more of them
    than samples) and holds at most ``FRAGMENT_TOKENS``.

    Args:
        group_size: samples of a group.
        workers: that generate.
        tokens: of the largest sample.
    """
    most = min(group_size // min(workers, group_size), FRAGMENT_TOKENS // tokens)
    return max(n for n in range(1, max(most, 1) + 1) if group_size % n == 0)


def full_fragments(batch_size: int | None, fragment_size: int) -> int:
    """Return how many full fragments a batch of so many samples holds, one at least; None: one."""
    return max(1, (batch_size or 0) // fragment_size)


def check_levels(levels: Sequence[float], shift: float | None) -> None:
    """Raise ValueError if named noise levels are no schedule, or there is another one beside."""
    if not levels:
        return
    if shift is not None:
        raise ValueError(
            f"model.sigmas names noise levels, and model.shift is {shift:g}, which makes others; "
            "leave one of them out."
        )
    kept = np.array([*levels, 0.0], np.float32)  # as schedules are
    if len(levels) < 2 or not (np.diff(kept) < 0).all():
        raise ValueError(
            f"model.sigmas is {list(levels)}; name the noise levels of at least two steps, each "
            "once, as numbers of float32, in descending order, without the 0 that follows."
        )
    if levels[0] < FIRST_LEVEL:
        raise ValueError(
            f"model.sigmas begins at {levels[0]:g}, but trajectories begin at pure noise; begin at "
            f"1, or a little less ({FIRST_LEVEL})."
        )


class ScreeningConfig(Strict):
    """Which samples are worth generating: candidates that cost less are scored before them."""

    candidates: Annotated[int, _SAMPLES] = Field(ge=3)
    """Candidates of each prompt, more than group_size. The samples of its group are generated from
    the noise of those with the highest and the lowest rewards."""

    num_steps: Annotated[int, _STEPS] | None = Field(None, ge=1)
    """Denoising steps of a candidate, or its sample's where these are fewer, all without noise;
    null: those of a sample, and with its noise, so that a candidate is the sample that it stands
    for, but for its precision."""

    precision: Precision = "model"
    """What the linear layers of the transformer's blocks compute in while candidates are generated,
    as rollout.precision says of samples. It takes no algorithm.correction: no candidate is
    trained."""


def is_of_candidates(group: int, num_groups: int) -> bool:
    """Say whether a group is one of candidates, where each prompt has one.

    Args:
        group: by its index in the iteration.
        num_groups: that the iteration begins and ends with (N): first N of candidates, then the N
            of their samples, then those that take the place of groups without signal, likewise.
    """
    return group // num_groups % 2 == 0


class RolloutConfig(Strict):
    """How trajectories are sampled."""

    prompts_per_iteration: Annotated[int, _SAMPLES] = Field(8, ge=1)
    """Prompts, hence groups, in one iteration."""

    group_size: Annotated[int, _SAMPLES] = Field(16, ge=2)
    """Samples per prompt. A group of one has no advantage by construction."""

    num_steps: Annotated[int, _STEPS] = Field(8, ge=2)
    """Denoising steps per trajectory; the most, where prompts have their own
    (prompts.steps_column)."""

    transition: TransitionName = "flow_sde"
    """Stochastic sampler: FlowGRPO's SDE, coefficients-preserving sampling, DanceGRPO's SDE,
    FlowGRPO's for Wan, or LongCat-Video's (FlowGRPO's with a truncated std)."""

    noise_level: float = Field(0.7, gt=0)
    """Scale of the injected noise; its meaning is the transition's (flow_sde 0.7, dance 0.3)."""

    solver: SolverName = "euler"
    """What takes the steps after the last noisy one, or all where none is: plain Euler steps, or
    DPM-Solver++(2M), of second order. Steps before a noisy one are Euler steps, so are those of
    evaluations."""

    initial_noise: Literal["sample", "group", "iteration"] = "sample"
    """Which samples start from one noise: none, those of a group, or all of the iteration."""

    branches: Annotated[int, _SAMPLES] = Field(1, ge=1)
    """Samples of a group, one after the other, that start from one noise, a divisor of group_size:
    they are one trajectory up to the first noisy step, at which it branches (TempFlow-GRPO: 6)."""

    storage: Literal["float32", "float16", "bfloat16"] = "float32"
    """Precision that trajectories travel and are kept in. Latents are rounded to it before their
    log-probs are taken, so that the replay stays exact; half precision halves the bytes."""

    precision: Precision = "model"
    """What the linear layers of the transformer's blocks compute in while samples are generated:
    model.dtype, or 8 bits (scaled by rows of weights, and by tokens), for GPUs from Ada and Hopper
    on. Training, evaluations and the reference policy keep model.dtype, so log-probs of samples are
    not those of the trainer: it takes an algorithm.correction. See docs/models.md."""

    cuda_graphs: bool = False
    """Whether the kernels of a forward pass are launched at once while samples are generated, which
    pays where a GPU waits for Python: for small fragments and small images. Each shape of a batch
    is captured when it first comes. Not with context_parallel, shard_weights or stages. See
    docs/models.md."""

    fragment_size: Annotated[int, Field(ge=1)] | Literal["auto"] = "auto"
    """Samples of one group that are denoised together, and scored together, a divisor of
    group_size. auto: the largest that leaves each of cluster.rollout_workers a fragment of every
    group, and whose samples have at most 8192 tokens together (a token: 16 x 16 pixels, 4
    frames)."""

    batch_size: Annotated[int, AtMost(1024, "no device gains by more")] | None = Field(None, ge=1)
    """Samples denoised together at most, as so many full fragments, of one group or of several. It
    pays where groups are too small to fill a GPU. null: each fragment by itself. See
    docs/scheduling.md."""

    refill: Annotated[int, AtMost(100, "each time is drawn for all groups")] = Field(0, ge=0)
    """Times that a group whose rewards are all equal is replaced by one of another prompt, drawn
    for the iteration; one that is equal again after that is skipped."""

    screening: ScreeningConfig | None = None
    """Candidates of which the samples of each group are chosen, as Sol-RL (arXiv:2604.06916) does;
    null: there are none. See docs/algorithms.md."""

    steps_per_task: Annotated[int, Field(ge=1), _STEPS] | Literal["auto"] = 1
    """Denoising steps in one task; auto groups them so that orchestration stays below 3%."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.fragment_size != "auto" and self.group_size % self.fragment_size:
            raise ValueError(
                f"rollout.group_size ({self.group_size}) is not a multiple of "
                f"rollout.fragment_size ({self.fragment_size}); choose a divisor of "
                f"{self.group_size}, or 'auto'."
            )
        if self.branches > 1 and (
            self.group_size % self.branches or self.initial_noise != "sample"
        ):
            raise ValueError(
                f"rollout.branches is {self.branches}, with rollout.group_size {self.group_size} "
                f"and rollout.initial_noise {self.initial_noise!r}; use a divisor of the group's "
                "size, and initial_noise 'sample', which then means each trajectory that branches."
            )
        self._check_screening()
        if self.transition == "cps" and self.noise_level > 1:
            raise ValueError(
                f"rollout.noise_level is {self.noise_level}, but cps takes a share of the noise in "
                "(0, 1]."
            )
        return self

    def _check_screening(self) -> None:
        """Refuse candidates among which there is nothing to choose, or that cost more."""
        screening = self.screening
        if screening is None:
            return
        if screening.candidates <= self.group_size:
            raise ValueError(
                f"rollout.screening.candidates is {screening.candidates}, of which "
                f"rollout.group_size ({self.group_size}) are chosen; use more, or leave screening "
                "out."
            )
        if screening.num_steps is not None and screening.num_steps > self.num_steps:
            raise ValueError(
                f"rollout.screening.num_steps is {screening.num_steps}, above rollout.num_steps "
                f"({self.num_steps}); use fewer, or leave it out for as many."
            )
        if self.initial_noise != "sample" or self.branches > 1:
            raise ValueError(
                f"rollout.screening chooses among noises to start from, but with initial_noise "
                f"{self.initial_noise!r} and branches {self.branches} samples of a group share "
                "one; use 'sample' and 1, or leave screening out."
            )
        if self.precision == "float8" and screening.precision != "float8":
            raise ValueError(
                "rollout.precision is 'float8', but rollout.screening.precision is 'model', so "
                "that candidates would cost more than samples; use 'float8' for both, or for "
                "screening alone."
            )

    def largest_batch(self, fragment_size: int) -> int:
        """Return the most samples that are denoised together: in fragments of a size."""
        return fragment_size * full_fragments(self.batch_size, fragment_size)

    @property
    def num_drawn(self) -> int:
        """Groups of an iteration: those that may take the place of others, and of candidates."""
        rounds = (1 + self.refill) * (1 + (self.screening is not None))
        return self.prompts_per_iteration * rounds

    def screens(self, group: int) -> bool:
        """Say whether a group of an iteration is one of candidates."""
        return self.screening is not None and is_of_candidates(group, self.prompts_per_iteration)

    @property
    def first_group(self) -> int:
        """The first group of samples: those of candidates come before it."""
        return 0 if self.screening is None else self.prompts_per_iteration

    @property
    def scored_sizes(self) -> dict[str, int]:
        """Samples, and candidates, that are scored together, by the key that says how many."""
        sizes = {"rollout.group_size": self.group_size}
        if self.screening is not None:
            sizes["rollout.screening.candidates"] = self.screening.candidates
        return sizes

    @property
    def uses_float8(self) -> bool:
        """Whether candidates or samples are generated in float8."""
        screens = self.screening is not None and self.screening.precision == "float8"
        return self.precision == "float8" or screens

    @property
    def key_of_float8(self) -> str:
        """The key that says so."""
        return f"rollout.{'' if self.precision == 'float8' else 'screening.'}precision"

    @property
    def of_candidates(self) -> Self:
        """How candidates are generated, where there are some."""
        if self.screening is None:
            return self
        changes = {"precision": self.screening.precision, "screening": None}
        return self.model_copy(update=changes)


class EvaluationConfig(Strict):
    """How a version is judged: noiseless sampling of prompts that were never trained on."""

    samples_per_prompt: Annotated[int, _SAMPLES] = Field(8, ge=1)
    """Images per evaluation prompt."""

    num_steps: Annotated[int, Field(ge=1), _STEPS] | Literal["auto"] = "auto"
    """Denoising steps (ODE); auto: as many as the family's pipeline takes by default, or
    as model.sigmas names noise levels for."""

    every: int = Field(0, ge=0)
    """Iterations between two evaluations during the run; 0 evaluates before and after only."""

    grid_prompts: Annotated[int, AtMost(1000, "a picture shows them all")] = Field(8, ge=1)
    """Evaluation prompts shown in the image grids before, during and after."""


def check_solver(algorithm: Algorithm, rollout: RolloutConfig) -> None:
    """Refuse a solver that takes no step, neither of samples nor of candidates without noise."""
    if rollout.solver == "euler" or (rollout.screening and rollout.screening.num_steps):
        return
    noisy, _ = algorithm.steps(rollout.num_steps, 0, np.random.default_rng(0))  # of all groups
    number = algorithm.num_trained(rollout.num_steps) if algorithm.own_noise else len(noisy)
    if number >= rollout.num_steps - 1:
        raise ValueError(
            f"rollout.solver is {rollout.solver}, but algorithm.type {algorithm.type} has noise in "
            f"{number} of rollout.num_steps ({rollout.num_steps}), and the last one is an Euler "
            "step; use a window of noisy steps, or 'euler'."
        )


def check_shared_noise(
    algorithm: Algorithm, rollout: RolloutConfig, prompts: PromptsConfig
) -> None:
    """Refuse samples that start from one noise and would stay the same, having none later."""
    if prompts.sample_columns or not algorithm.trains_clean:
        return
    if rollout.initial_noise == "sample" and rollout.branches == 1:
        return
    key, value = "initial_noise", repr(rollout.initial_noise)
    if rollout.branches > 1:
        key, value = "branches", str(rollout.branches)
    raise ValueError(
        f"rollout.{key} is {value}, but algorithm.type {algorithm.type} generates without noise, "
        "so that samples of a group that start from one would be the same; use initial_noise "
        "'sample' and branches 1."
    )
