"""The config of a run: one frozen, validated tree. Importing this module must not import torch.

A config is complete before anything starts: derived values are properties, unknown keys are errors,
and combinations that cannot work (`combinations.py`) are refused with what clashes and a way out.
"""

from math import ceil
from typing import Annotated, Any, Final, Self

import numpy as np
from pydantic import Field, field_validator, model_validator

from digen_core.algorithms import ALGORITHMS, DEFAULT, AnyAlgorithm
from digen_core.config import combinations
from digen_core.config.checkpoint import CheckpointConfig
from digen_core.config.given import check_given_rewards, check_given_samples
from digen_core.config.model import ModelConfig
from digen_core.config.numerics import NumericsConfig
from digen_core.config.parallel import ParallelConfig
from digen_core.config.prompts import PromptsConfig
from digen_core.config.rewards import CalledConfig, RewardConfig, best, called, forms_of, that_see
from digen_core.config.rewards.base import Form
from digen_core.config.rewards.comparisons import check_relative
from digen_core.config.rewards.keys import number_or_any_table, with_types
from digen_core.config.rewards.verifiers import ShapesConfig
from digen_core.config.rollout import EvaluationConfig, RolloutConfig, largest_fragment
from digen_core.config.schedule import Asker, ClusterConfig, ScheduleConfig, TrackingConfig
from digen_core.config.size import Size, tokens_of
from digen_core.config.train import TrainConfig, dealt_units
from digen_core.strict import AtMost, Strict, unusable


def _any_table(schema: dict[str, Any]) -> None:
    """Let the JSON schema take a table without its type, which fits several."""
    del schema["discriminator"]
    schema["anyOf"] = schema.pop("oneOf")


NO_LIMITS: Final[dict[str, None]] = {"max_minutes": None, "max_cost": None}
"""Changes of a config with which a run makes all its iterations."""


class RunConfig(Strict):
    """One post-training run."""

    name: str = Field("shapes", max_length=100, pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")
    """Prefix of the run's folder and of its name in Prefect and MLflow."""

    seed: int = Field(0, ge=0, lt=2**63)
    """Every random stream is derived from (seed, iteration, group, sample, step)."""

    num_iterations: Annotated[int, AtMost(1_000_000, "so many take years")] = Field(10, ge=1)
    """Rounds of prompts; each makes train.updates_per_iteration optimizer steps."""

    max_minutes: float | None = Field(None, gt=0)
    """Stop at the end of the iteration in which this much time has passed; null never stops."""

    max_cost: float | None = Field(None, gt=0)
    """Stop at the end of the iteration in which so much was spent, in the currency of
    `cluster.price_per_hour`, which it needs; null never stops. What follows, an evaluation and the
    export, comes on top. It counts from each start."""

    rewards: dict[str, RewardConfig] = Field(
        default={"shapes": ShapesConfig()}, json_schema_extra=number_or_any_table
    )
    """Each reward's weight, or a table of its options: see docs/rewards.md. A name is a type of
    reward, or any name with a type, or your own `module:function`."""

    model: ModelConfig = ModelConfig()
    prompts: PromptsConfig = PromptsConfig()
    rollout: RolloutConfig = RolloutConfig()
    algorithm: AnyAlgorithm = Field(ALGORITHMS[DEFAULT](type=DEFAULT), json_schema_extra=_any_table)
    """What is learnt from the rewards; its type names it."""

    train: TrainConfig = TrainConfig()
    numerics: NumericsConfig = NumericsConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    checkpoints: CheckpointConfig = CheckpointConfig()
    cluster: ClusterConfig = ClusterConfig()
    parallel: ParallelConfig = ParallelConfig()
    schedule: ScheduleConfig = ScheduleConfig()
    tracking: TrackingConfig = TrackingConfig()

    @model_validator(mode="before")
    @classmethod
    def _check_values(cls, values: object) -> object:
        for problem in unusable(values):
            raise ValueError(f"{problem}.")
        return values

    @model_validator(mode="before")
    @classmethod
    def _with_algorithm_type(cls, values: object) -> object:
        """Take FlowGRPO where settings of an algorithm are given but not its name."""
        algorithm = values.get("algorithm") if isinstance(values, dict) else None
        if isinstance(values, dict) and isinstance(algorithm, dict):
            return {**values, "algorithm": {"type": DEFAULT, **algorithm}}
        return values

    @model_validator(mode="before")
    @classmethod
    def _with_source_image(cls, values: object) -> object:
        """Have the model shown the images that prompts come with."""
        if not isinstance(values, dict):
            return values
        prompts, model = values.get("prompts"), values.get("model", {})
        if isinstance(prompts, dict) and isinstance(model, dict) and prompts.get("image_column"):
            return {**values, "model": {"source_image": True, **model}}
        return values

    @property
    def samples_per_iteration(self) -> int:
        """Samples of one iteration: N groups of G."""
        return self.rollout.prompts_per_iteration * self.rollout.group_size

    @property
    def pulls_at_once(self) -> int | None:
        """Devices that pull a version from one other at the same time; None: any number.

        All weights take a link for so long that two would wait for each other.
        """
        return 1 if self.train.lora is None else None

    @property
    def copies_state(self) -> bool:
        """Whether a second trainer has a copy of each train state: of adapters it is small."""
        return self.train.lora is not None

    @property
    def fragment_size(self) -> int:
        """Samples of a fragment: what ``rollout.fragment_size`` "auto" comes to."""
        if self.rollout.fragment_size != "auto":
            return self.rollout.fragment_size
        tokens = max(map(tokens_of, (self.model.size, *self.model.sizes)))
        return largest_fragment(self.rollout.group_size, self.cluster.rollout_workers, tokens)

    @property
    def batch_size(self) -> int:
        """Most samples denoised together: the whole fragments in ``rollout.batch_size``."""
        return self.rollout.largest_batch(self.fragment_size)

    @property
    def evaluation_steps(self) -> int:
        """Denoising steps of an evaluation: what ``evaluation.num_steps`` "auto" comes to."""
        if self.evaluation.num_steps != "auto":
            return self.evaluation.num_steps
        return len(self.model.sigmas) or self.model.defaults.num_inference_steps

    @property
    def trained_per_group(self) -> int:
        """Samples of a group that are trained."""
        return self.algorithm.best_of or self.rollout.group_size

    @property
    def num_trained_steps(self) -> int:
        """Trained steps of a trajectory (K)."""
        return self.algorithm.num_trained(self.rollout.num_steps)

    def pair_weight(self, num_steps: int) -> float:
        """Return what a pair of a trajectory counts: of fewer trained steps more."""
        return self.num_trained_steps / self.algorithm.num_trained(num_steps)

    @property
    def trains_clean(self) -> bool:
        """Whether clean latents are trained, noised anew, in place of sampled transitions."""
        return self.algorithm.trains_clean

    @property
    def keeps_old(self) -> bool:
        """Whether another policy than the trained one generates, which lags behind it."""
        return self.algorithm.keeps_old

    @property
    def keeps_start(self) -> bool:
        """Whether what generated when an iteration began is kept until its last update."""
        asked = self.keeps_old or self.algorithm.compares_with_start
        return self.train.updates_per_iteration > 1 and asked

    @property
    def other_velocities(self) -> float:
        """Velocities of what generated when the iteration began, for each pair, on average.

        In its first update that is often the trained version itself.
        """
        if not self.algorithm.compares_with_start:
            return 0.0
        return 1.0 if self.keeps_old else 1 - 1 / self.train.updates_per_iteration

    @property
    def keeps_reference(self) -> bool:
        """Whether the base model is asked for, in training or in rollouts."""
        return bool(self.algorithm.kl_coefficient or self.asks_of_steps)

    @property
    def generates_reference(self) -> bool:
        """Whether who generates a sample asks the base model what training compares with."""
        return self.schedule.reference == "generation" and bool(self.algorithm.kl_coefficient)

    @property
    def who_asks_reference(self) -> Asker:
        """As in ``schedule.reference``: training, where nothing else is said."""
        return "generation" if self.generates_reference else "training"

    @property
    def reference_is_open(self) -> bool:
        """Whether a plan may say who asks the base model; of samples from files no step tells."""
        asked = self.algorithm.kl_coefficient and not self.prompts.sample_columns
        return self.schedule.reference == "auto" and bool(asked)

    def asking(self, reference: Asker) -> Self:
        """Return the config in which they ask the base model."""
        schedule = self.schedule.model_copy(update={"reference": reference})
        return self.model_copy(update={"schedule": schedule})

    @property
    def kl_reward(self) -> float:
        """Factor of the KL divergence that is taken off the reward."""
        factor, _ = self.algorithm.reward_kl or (0.0, None)
        return factor

    @property
    def asks_of_steps(self) -> bool:
        """Whether advantages are made of something that is asked of each trained step.

        That is its divergence from the reference policy, for a KL that is taken off the reward, or
        the margin over that policy.
        """
        return bool(self.kl_reward or self.algorithm.needs_margins)

    @property
    def velocities_per_step(self) -> float:
        """Velocities of a denoising step, on average."""
        return self.velocities_with(references=self.generates_reference)

    @property
    def own_velocities(self) -> int:
        """Those of them that a sample is denoised by; the others have the guidance of training."""
        return 0 if self.prompts.sample_columns else 1

    def velocities_with(self, *, references: bool) -> float:
        """Return the velocities of a denoising step, on average.

        In trained steps a KL that is taken off the reward asks the reference policy, too, and if
        samples are generated in another precision the policy in its own; a margin asks both
        policies once more. Samples that come from files take none beside that.

        Args:
            references: whether what training compares with is asked there, too.
        """
        of_kl = 1 + (self.rollout.precision != "model") if self.kl_reward else int(references)
        asked = 2 if self.algorithm.needs_margins else of_kl
        steps = self.most_reference_steps if references else self.num_trained_steps
        return self.own_velocities + asked * steps / self.rollout.num_steps

    @property
    def most_reference_steps(self) -> int:
        """Most steps of a sample at which training compares with the base model, in all epochs."""
        if not self.algorithm.redraws:
            return self.num_trained_steps
        there = self.algorithm.steps(self.rollout.num_steps, 0, np.random.default_rng(0)).trained
        return min(self.num_trained_steps * self.train.epochs, len(there))

    @property
    def encodings_per_step(self) -> float:
        """Samples from files that the VAE encodes, for each sample and step that others take."""
        return 1 / self.rollout.num_steps if self.prompts.sample_columns else 0.0

    @property
    def num_pairs(self) -> int:
        """Pairs (sample, trained step) of an iteration, those of skipped groups included."""
        groups = self.rollout.prompts_per_iteration
        return groups * self.trained_per_group * self.num_trained_steps

    @property
    def pairs_per_update(self) -> int:
        """Pairs of an update, those of skipped groups included."""
        return self.num_pairs * self.train.epochs // self.train.updates_per_iteration

    @property
    def dealt_units(self) -> int:
        """Groups, or trained samples, of an iteration that each epoch deals to its updates."""
        groups = self.rollout.prompts_per_iteration
        return dealt_units(self.train.dealt_by, groups, self.trained_per_group)

    @property
    def num_updates(self) -> int:
        """Updates of the whole run, those that are skipped included."""
        return self.num_iterations * self.train.updates_per_iteration

    @property
    def num_behind(self) -> int:
        """How far behind the newest version one may be that devices hold and work names."""
        return (self.schedule.num_older + 1) * self.train.updates_per_iteration - 1

    def is_kept(self, version: int) -> bool:
        """Say whether a version with which an iteration ends gets a checkpoint then."""
        # Where updates are skipped, those of a whole iteration count as one.
        return self.checkpoints.are_due(ceil(version / self.train.updates_per_iteration))

    def size_of(self, iteration: int, group: int) -> Size:
        """Return the size of a group's samples; a group has that of the one it takes the place of.

        The groups of the run, one iteration after the other, take the model's sizes in turn.
        """
        if not self.model.sizes:
            return self.model.size
        count = self.rollout.prompts_per_iteration
        return self.model.sizes[(iteration * count + group % count) % len(self.model.sizes)]

    @property
    def reward_weights(self) -> dict[str, float]:
        """The weight of each reward."""
        return {name: reward.weight for name, reward in self.rewards.items()}

    @property
    def pools(self) -> list[str]:
        """Names of the pools of workers that only score."""
        return sorted({reward.pool for reward in self.rewards.values() if reward.pool is not None})

    def rewards_of(self, pool: str | None) -> dict[str, CalledConfig]:
        """Return the rewards that a pool scores; None: those of the devices that generate."""
        return {name: own for name, own in called(self.rewards).items() if own.pool == pool}

    @property
    def is_decoded(self) -> bool:
        """Whether all samples that are trained are decoded: to be scored, or kept as images."""
        return "images" in forms_of(self.rewards) or self.tracking.keep_images != "none"

    @property
    def scored_elsewhere(self) -> frozenset[Form]:
        """What is needed of samples after the device that generated them has scored them.

        By a pool, or by a reward that sees groups.
        """
        groups = that_see(self.rewards, "groups")
        pooled = {name: own for name, own in self.rewards.items() if own.pool is not None}
        return forms_of({**groups, **pooled})

    @field_validator("rewards", mode="before")
    @classmethod
    def _with_reward_types(cls, rewards: object) -> object:
        return with_types(rewards)

    @model_validator(mode="after")
    def _check(self) -> Self:
        combinations.check_source_image(self.prompts, self.model)
        check_given_samples(self.prompts, self.rollout, self.algorithm, self.model)
        combinations.check_work(self.rollout)
        combinations.check_batch(self.rollout, self.prompts, self.fragment_size)
        combinations.check_profiles(self.tracking, self.num_iterations)
        combinations.check_updates(self.train, self.dealt_units)
        combinations.check_precision(self.rollout, self.algorithm, self.prompts)
        combinations.check_graphs(self.rollout, self.parallel)
        combinations.check_algorithm(self.algorithm, self.rollout, self.prompts)
        keeps_reference = self.keeps_reference
        combinations.check_guidance(self.algorithm, self.model, keeps_reference=keeps_reference)
        combinations.check_named_levels(self.model, self.rollout, self.evaluation_steps)
        combinations.check_own_steps(self.prompts, self.algorithm, self.model)
        combinations.check_schedule(self.algorithm, self.schedule)
        combinations.check_workers(self.cluster, self.schedule)
        combinations.check_reference(self.algorithm, self.schedule)
        combinations.check_cost(self.max_cost, self.cluster)
        combinations.check_weights(self.rewards)
        check_given_rewards(self.rewards, self.prompts)
        check_relative(self.rewards, self.rollout.scored_sizes)
        best.check_best(self.checkpoints, self.rewards, self.algorithm)
        combinations.check_history(self.rewards, self.algorithm)
        combinations.check_pools(self.cluster, self.pools)
        return self
