"""What a run is: one frozen, validated tree. Importing this module must not import torch.

A config is complete before anything starts: derived values are properties, unknown keys are errors,
and combinations that cannot work are refused here with the values that clash and a way out.
"""

from typing import Annotated, Final, Literal, Self

from pydantic import Field, field_validator, model_validator

from digen_core.algorithm_config import AlgorithmConfig, FlowGrpoConfig, Transition
from digen_core.reward_config import RewardConfig, ShapesConfig
from digen_core.reward_keys import with_types
from digen_core.strict import Strict

Family = Literal["flux", "sd3", "qwen_image", "wan", "hunyuan_video"]
"""A model family: an adapter in digen_core/models."""

VIDEO_FAMILIES: Final[tuple[Family, ...]] = ("wan", "hunyuan_video")

WITH_BARRIER = ("colocated", "colocated-strong", "disaggregated")
"""Layouts that train when all rewards of the iteration are there."""


class ModelConfig(Strict):
    """Which pipeline is post-trained, and in what precision."""

    family: Family = "flux"
    """Model family: FLUX.1, Stable Diffusion 3 and 3.5, Qwen-Image, Wan 2.1 or HunyuanVideo."""

    path: str = "deployments/models/shapes"
    """Diffusers folder or hub id, loaded with from_pretrained."""

    revision: str | None = None
    """Hub revision; null is the default branch."""

    dtype: Literal["float64", "float32", "bfloat16", "float16"] = "float32"
    """Precision of weights and activations. Latents and log-probs stay float32 or better."""

    device: str = "auto"
    """Torch device of the workers: auto takes cuda where a worker has one, else cpu."""

    height: int = Field(32, ge=8)
    """Image height in pixels; what it must be a multiple of depends on the model, often 16."""

    width: int = Field(32, ge=8)
    """Image width in pixels, likewise."""

    num_frames: int = Field(1, ge=1)
    """Frames of a video: 1 makes images; more, which are 1 + a multiple of 4, take a video family
    (wan, hunyuan_video)."""

    max_sequence_length: int = Field(12, ge=1, le=512)
    """Tokens a prompt is padded or cut to (by T5, UMT5, Llama or Qwen2.5-VL, whichever the family
    has; CLIP always takes 77 or its own)."""

    guidance_scale: float = Field(3.5, ge=0)
    """flux, hunyuan_video: embedded guidance, an input of models distilled with it (FLUX.1-dev 3.5,
    HunyuanVideo 6), ignored by others. sd3, wan, qwen_image: classifier-free guidance (SD3.5 4.5,
    Wan 5, Qwen-Image 4, which also keeps the velocity's norm); it doubles the compute, and at 1 or
    less there is none."""

    negative_prompt: str = ""
    """What classifier-free guidance steers away from (Qwen-Image is used with a single space);
    families with embedded guidance ignore it."""

    shift: float | None = Field(None, gt=0)
    """Replace the family's own schedule by sigma = shift u / (1 + (shift - 1) u), u falling evenly
    from 1 to 0 (DanceGRPO: 3, HunyuanVideo 5). Null: the family's own."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.num_frames > 1 and self.family not in VIDEO_FAMILIES:
            raise ValueError(
                f"model.num_frames is {self.num_frames}, but {self.family} makes images; use 1, or "
                f"a video family ({', '.join(VIDEO_FAMILIES)})."
            )
        if (self.num_frames - 1) % 4:
            raise ValueError(
                f"model.num_frames is {self.num_frames}; video models take 1 + a multiple of 4: "
                f"use {self.num_frames - (self.num_frames - 1) % 4}."
            )
        return self


class PromptsConfig(Strict):
    """Where prompts come from: text files, one prompt a line; empty lines are skipped."""

    train: str = "deployments/prompts/shapes_train.txt"
    """Prompts that are trained on."""

    evaluation: str = "deployments/prompts/shapes_evaluation.txt"
    """Prompts kept for evaluation only."""


class RolloutConfig(Strict):
    """How trajectories are sampled."""

    prompts_per_iteration: int = Field(8, ge=1)
    """Prompts, hence groups, in one iteration."""

    group_size: int = Field(16, ge=2)
    """Samples per prompt. A group of one has no advantage by construction."""

    num_steps: int = Field(8, ge=2)
    """Denoising steps per trajectory."""

    transition: Transition = "flow_sde"
    """Stochastic sampler: FlowGRPO's SDE, coefficients-preserving sampling, DanceGRPO's SDE,
    FlowGRPO's for Wan, or LongCat-Video's (FlowGRPO's with a truncated std)."""

    noise_level: float = Field(0.7, gt=0)
    """Scale of the injected noise; its meaning is the transition's (flow_sde 0.7, dance 0.3)."""

    initial_noise: Literal["sample", "group", "iteration"] = "sample"
    """Which samples start from one noise: none, those of a group, or all of the iteration."""

    storage: Literal["float32", "float16", "bfloat16"] = "float32"
    """Precision that trajectories travel and are kept in. Latents are rounded to it before their
    log-probs are taken, so that the replay stays exact; half precision halves the bytes."""

    fragment_size: int = Field(16, ge=1)
    """Samples of one group denoised together in one batch."""

    steps_per_task: Annotated[int, Field(ge=1)] | Literal["auto"] = 1
    """Denoising steps in one task; auto groups them so that orchestration stays below 5%."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.group_size % self.fragment_size:
            raise ValueError(
                f"rollout.group_size ({self.group_size}) is not a multiple of "
                f"rollout.fragment_size ({self.fragment_size}); choose a divisor of "
                f"{self.group_size}."
            )
        if self.transition == "cps" and self.noise_level > 1:
            raise ValueError(
                f"rollout.noise_level is {self.noise_level}, but cps takes a share of the noise in "
                "(0, 1]."
            )
        return self


class LoraConfig(Strict):
    """Low-rank adapters on the transformer; the base weights stay frozen."""

    rank: int = Field(32, ge=1)
    """Rank of the update."""

    alpha: float = Field(64.0, gt=0)
    """Scale: the update is alpha / rank * B A."""

    targets: tuple[str, ...] = ("to_q", "to_k", "to_v", "to_out.0")
    """Module name suffixes that get an adapter."""

    init: Literal["gaussian", "kaiming"] = "gaussian"
    """How A is drawn; B is 0. gaussian: normal with deviation 1 / rank (FlowGRPO); kaiming: uniform
    within 1 / sqrt(columns of A), peft's own default (DanceGRPO)."""


class TrainConfig(Strict):
    """How a policy version is made from scored groups."""

    learning_rate: float = Field(3e-4, gt=0)
    """AdamW's, at the first update."""

    learning_rate_decay: Literal["none", "cosine"] = "none"
    """cosine: fall to 0 over num_iterations, so that the noise of late updates averages out."""

    betas: tuple[float, float] = (0.9, 0.999)
    """AdamW's."""

    adam_eps: float = Field(1e-8, gt=0)
    """AdamW's."""

    weight_decay: float = Field(1e-4, ge=0)
    """AdamW's."""

    max_grad_norm: float = Field(1.0, gt=0)
    """The gradient's norm is clipped to this before the step."""

    pack_size: int = Field(16, ge=1)
    """Pairs (one sample at one trained step) in one forward and backward."""

    lora: LoraConfig | None = LoraConfig()
    """Adapters to train; null trains all weights of the transformer."""

    gradient_checkpointing: bool = False
    """Keep a block's input only and compute the block again for its gradient: less memory, about a
    third more compute, the same gradient."""

    ema_decay: float = Field(0.9, ge=0, lt=1)
    """Moving average of the weights for evaluation and saving; 0 turns it off."""

    ema_warmup: bool = True
    """Let the decay of the average's n-th step be (1+n)/(10+n) at most and begin with the weights
    after the first one (diffusers' EMAModel); else it is ema_decay from the start (DanceGRPO)."""

    ema_every: int = Field(1, ge=1)
    """Updates between two steps of the average."""

    max_replay_error: float | None = Field(None, gt=0)
    """Largest |log-ratio| of a pair that the trained version itself sampled: there it is numerical
    noise. More ends the run. Null: 1e-5, or 1e-2 for models in half precision."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError(f"train.betas are {list(self.betas)}; each must be in [0, 1).")
        return self


class EvaluationConfig(Strict):
    """How a version is judged: noiseless sampling of prompts that were never trained on."""

    samples_per_prompt: int = Field(8, ge=1)
    """Images per evaluation prompt."""

    num_steps: int = Field(8, ge=1)
    """Denoising steps (ODE)."""

    every: int = Field(0, ge=0)
    """Iterations between two evaluations during the run; 0 evaluates before and after only."""

    grid_prompts: int = Field(8, ge=1)
    """Evaluation prompts shown in the image grids before, during and after."""


class ClusterConfig(Strict):
    """Which devices a run uses."""

    rollout_workers: int = Field(1, ge=1)
    """Worker processes that generate and score."""

    trainer_workers: int = Field(1, ge=1)
    """Worker processes that train."""

    threads_per_worker: int = Field(1, ge=1)
    """CPU threads of each worker's engine."""

    scheduler_address: str | None = None
    """A running Dask cluster whose workers declare the resources `rollout` and `trainer`;
    null starts one on this machine."""


class ScheduleConfig(Strict):
    """How an iteration's work is laid out over the devices."""

    layout: Literal[
        "colocated",
        "colocated-strong",
        "disaggregated",
        "gap",
        "tsp",
        "tag",
        "tcss",
        "elastic",
        "auto",
    ] = "disaggregated"
    """colocated: all devices generate, then train; disaggregated: devices for each, a barrier
    between; gap: train groups as they complete; tsp: and pack pairs of any steps; tag: and idle
    trainers generate; tcss: and the next iteration begins on the version before; elastic: as tag,
    and idle rollout devices train; auto: what is predicted to be the fastest."""

    max_stale_share: float | None = Field(None, ge=0, le=1)
    """Largest share of an iteration's groups that may begin on an older version. Null: 0.5 for
    tcss, 0 for the others. Above 0 in tcss and elastic only."""

    max_staleness: int = Field(1, ge=1)
    """Largest number of updates between the version that generates and the version trained."""

    helpers: Annotated[int, Field(ge=0)] | Literal["auto"] = "auto"
    """Trainers that may generate while they have no pairs; auto: as many as is predicted to pay."""

    assistants: Annotated[int, Field(ge=0)] | Literal["auto"] = "auto"
    """Rollout devices that may train while they have no fragments; auto: those that pay."""

    profile: str | None = None
    """What this recipe costs: the profile.json of an earlier run, to predict and plan with from the
    start; null measures it when the workers are ready, and every run goes on learning it."""

    @property
    def num_helpers(self) -> int | None:
        """The trainers that may generate; None: not fixed."""
        return None if self.helpers == "auto" else self.helpers

    @property
    def num_assistants(self) -> int | None:
        """The rollout devices that may train; None: not fixed."""
        return None if self.assistants == "auto" else self.assistants

    @property
    def stale_share(self) -> float:
        """The effective largest share of stale groups."""
        if self.max_stale_share is None:
            return 0.5 if self.layout == "tcss" else 0.0
        return self.max_stale_share

    @model_validator(mode="before")
    @classmethod
    def _without_plus(cls, values: object) -> object:
        """Take "+tsp" for "tsp": the layouts are often written with a plus."""
        if isinstance(values, dict) and isinstance(values.get("layout"), str):
            return {**values, "layout": values["layout"].removeprefix("+")}
        return values

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.stale_share and self.layout not in ("tcss", "elastic", "auto"):
            raise ValueError(
                f"schedule.max_stale_share is {self.max_stale_share}, but layout {self.layout} is "
                "on-policy; use tcss or elastic, or leave it out."
            )
        return self


class TrackingConfig(Strict):
    """Where results go."""

    runs_dir: str = "runs"
    """Folder of all runs: one folder per run, and MLflow's database."""

    mlflow_uri: str | None = None
    """MLflow tracking server; null is the SQLite file mlflow.db in runs_dir."""

    experiment: str = Field("digen", min_length=1)
    """MLflow experiment."""


class RunConfig(Strict):
    """One post-training run."""

    name: str = Field("shapes", pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")
    """Prefix of the run's folder and of its name in Prefect and MLflow."""

    seed: int = Field(0, ge=0)
    """Every random stream is derived from (seed, iteration, group, sample, step)."""

    num_iterations: int = Field(10, ge=1)
    """Rounds of prompts; each ends in one optimizer step."""

    max_minutes: float | None = Field(None, gt=0)
    """Stop at the end of the iteration in which this much time has passed; null never stops."""

    rewards: dict[str, RewardConfig] = Field(default={"shapes": ShapesConfig()})
    """Each reward's weight, or a table of its options: see docs/rewards.md. A name is a type of
    reward, or any name with a type, or your own `module:function`."""

    model: ModelConfig = ModelConfig()
    prompts: PromptsConfig = PromptsConfig()
    rollout: RolloutConfig = RolloutConfig()
    algorithm: AlgorithmConfig = FlowGrpoConfig()
    """What is learnt from the rewards; its type names it."""

    train: TrainConfig = TrainConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    cluster: ClusterConfig = ClusterConfig()
    schedule: ScheduleConfig = ScheduleConfig()
    tracking: TrackingConfig = TrackingConfig()

    @model_validator(mode="before")
    @classmethod
    def _with_algorithm_type(cls, values: object) -> object:
        """Take FlowGRPO where settings of an algorithm are given but not its name."""
        algorithm = values.get("algorithm") if isinstance(values, dict) else None
        if isinstance(values, dict) and isinstance(algorithm, dict):
            return {**values, "algorithm": {"type": "flow_grpo", **algorithm}}
        return values

    @property
    def samples_per_iteration(self) -> int:
        """Samples of one iteration: N groups of G."""
        return self.rollout.prompts_per_iteration * self.rollout.group_size

    @property
    def trained_per_group(self) -> int:
        """Samples of a group that are trained."""
        return self.algorithm.best_of or self.rollout.group_size

    @property
    def num_trained_steps(self) -> int:
        """Trained steps of a trajectory (K)."""
        return self.algorithm.num_trained(self.rollout.num_steps)

    @property
    def trains_clean(self) -> bool:
        """Whether clean latents are trained, noised anew, in place of sampled transitions."""
        return self.algorithm.type == "diffusion_nft"

    @property
    def keeps_old(self) -> bool:
        """Whether another policy than the trained one generates, which lags behind it."""
        algorithm = self.algorithm
        return algorithm.type == "diffusion_nft" and algorithm.old_policy_decay != "none"

    @property
    def keeps_reference(self) -> bool:
        """Whether the base model is asked for in training."""
        return bool(self.algorithm.kl_coefficient)

    @property
    def num_pairs(self) -> int:
        """Pairs (sample, trained step) of an update, those of skipped groups included."""
        groups = self.rollout.prompts_per_iteration
        return groups * self.trained_per_group * self.num_trained_steps

    @property
    def reward_weights(self) -> dict[str, float]:
        """The weight of each reward."""
        return {name: reward.weight for name, reward in self.rewards.items()}

    @field_validator("rewards", mode="before")
    @classmethod
    def _with_reward_types(cls, rewards: object) -> object:
        return with_types(rewards)

    @model_validator(mode="after")
    def _check_algorithm(self) -> Self:
        self.algorithm.check_steps(self.rollout.num_steps)
        if self.trained_per_group > self.rollout.group_size:
            raise ValueError(
                f"algorithm.best_of ({self.algorithm.best_of}) is above rollout.group_size "
                f"({self.rollout.group_size}); sample larger groups or train fewer."
            )
        self._check_transition()
        return self

    def _check_transition(self) -> None:
        """Refuse transitions that the algorithm's maths is not for."""
        transition, num_steps = self.rollout.transition, self.rollout.num_steps
        allowed = self.algorithm.transitions
        if transition not in allowed:
            raise ValueError(
                f"algorithm.type {self.algorithm.type} is not for rollout.transition {transition}; "
                f"use {' or '.join(allowed)}."
            )
        if self.algorithm.needs_noise and self.rollout.storage != "float32":
            raise ValueError(
                f"rollout.storage is {self.rollout.storage}, but algorithm.type "
                f"{self.algorithm.type} takes the noise back out of the latents; use float32."
            )
        if transition == "cps" and self.algorithm.end_of_noise(num_steps) == num_steps:
            raise ValueError(
                f"the last cps step ({num_steps}) is noiseless and has no log-prob to train; use "
                f"algorithm.trained_fraction 0.99, or a window with high <= {num_steps - 1}."
            )

    @model_validator(mode="after")
    def _check_schedule(self) -> Self:
        if self.algorithm.needs_all_rewards and self.schedule.layout not in (
            *WITH_BARRIER,
            "auto",
        ):
            scale, remedy = self.algorithm.advantage_scale, "advantage_scale 'group' or "
            what = f"advantage_scale {scale!r}"
            if self.algorithm.type == "ddpo":
                what, remedy = "ddpo", ""
            raise ValueError(
                f"algorithm: {what} needs all rewards of the iteration, but schedule.layout "
                f"{self.schedule.layout} trains groups before that; use {remedy}"
                f"layout {', '.join(WITH_BARRIER[:-1])} or {WITH_BARRIER[-1]}."
            )
        return self

    @model_validator(mode="after")
    def _check_rewards(self) -> Self:
        if not self.rewards:
            raise ValueError("rewards is empty; name at least one, for example shapes = 1.0.")
        if not any(self.reward_weights.values()):
            raise ValueError(f"rewards {self.reward_weights} all weigh 0; nothing would be learnt.")
        return self


class ConfigError(ValueError):
    """A config, or something it names, cannot be used; the message is one line for the user."""
