"""The algorithms that a run can choose by ``algorithm.type``, and their settings.

Importing this module must not import torch. Formulas and sources: docs/algorithms.md.
"""

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from digen_core.config.algorithm_base import (
    AdvantagesConfig,
    FirstStepsConfig,
    KlScaling,
    PolicyGradientConfig,
    Transition,
    check_fraction,
)


class FlowGrpoConfig(FirstStepsConfig):
    """FlowGRPO: a clipped surrogate on the ratio of every trained transition."""

    type: Literal["flow_grpo"] = "flow_grpo"


class GrpoGuardConfig(FirstStepsConfig):
    """GRPO-Guard: FlowGRPO with ratios that are centred and scaled alike at every step."""

    transitions: ClassVar[tuple[Transition, ...]] = ("flow_sde", "dance", "wan_sde", "longcat_sde")

    needs_noise: ClassVar[bool] = True

    type: Literal["grpo_guard"] = "grpo_guard"

    clip_range: float = Field(2e-6, gt=0, lt=1)
    """Half-width of the clip of normalised ratios."""

    @property
    def ratio_clip(self) -> None:
        """None: normalised ratios are clipped instead."""
        return None


class FlowDppoConfig(FirstStepsConfig):
    """Flow-DPPO: FlowGRPO with a bound on the exact divergence in place of the ratio clip."""

    needs_noise: ClassVar[bool] = True

    type: Literal["flow_dppo"] = "flow_dppo"

    max_divergence: float = Field(1e-5, gt=0)
    """Mean over the latent's elements of the divergence from the policy that sampled, above which
    a pair may no longer move further away. Takes the place of clip_range, which is unused."""

    @property
    def ratio_clip(self) -> None:
        """None: the divergence is bounded instead."""
        return None


class DdpoConfig(FirstStepsConfig):
    """DDPO: advantages by the running statistics of each prompt."""

    type: Literal["ddpo"] = "ddpo"

    advantage_eps: float = Field(1e-6, gt=0)
    """Added to the standard deviation."""

    buffer_size: int = Field(32, ge=1)
    """Rewards of a prompt that are remembered."""

    min_count: int = Field(16, ge=1)
    """Remembered rewards from which a prompt has statistics of its own; before that the
    iteration's are taken."""

    @property
    def needs_all_rewards(self) -> bool:
        """Whether advantages wait for the rewards of all groups."""
        return True

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.min_count > self.buffer_size:
            raise ValueError(
                f"algorithm.min_count ({self.min_count}) is above algorithm.buffer_size "
                f"({self.buffer_size}); no prompt would ever have statistics of its own."
            )
        for name in ("mix", "advantage_scale", "advantage_ddof", "trimmed_ratio", "kl_reward"):
            default, found = type(self).model_fields[name].default, getattr(self, name)
            if found != default:
                raise ValueError(
                    f"algorithm.{name} {found!r} is not for ddpo, which has statistics of its own; "
                    f"use {default!r}."
                )
        return self


class LongCatConfig(FirstStepsConfig):
    """LongCat-Video: FlowGRPO with losses weighted so that every step moves the policy alike."""

    transitions: ClassVar[tuple[Transition, ...]] = ("longcat_sde", "flow_sde")

    type: Literal["longcat"] = "longcat"

    advantage_scale: Literal["group", "batch", "max_group", "none"] = "max_group"
    """Divide centred rewards by the standard deviation of the group, of the iteration, by the
    largest one of a group, or by 1."""

    kl: KlScaling = "gaussian"
    """gaussian: true KL of the transition; flowgrpo: that times the step size."""


class DanceGrpoConfig(PolicyGradientConfig):
    """DanceGRPO: all steps but the last are noisy, and a random share of them is trained."""

    type: Literal["dance_grpo"] = "dance_grpo"

    advantage_eps: float = Field(1e-8, gt=0)
    """Added to the standard deviation."""

    advantage_ddof: Literal[0, 1] = 1
    """0: population standard deviation (FlowGRPO); 1: unbiased (DanceGRPO)."""

    trained_fraction: float = Field(0.6, gt=0, le=1)
    """Share of all steps but the last that is trained, drawn for each iteration."""

    def num_trained(self, num_steps: int) -> int:
        """Return the trained steps of a trajectory of ``num_steps``."""
        return int((num_steps - 1) * self.trained_fraction)

    def end_of_noise(self, num_steps: int) -> int:
        """Return one more than the last step that has noise."""
        return num_steps - 1

    def check_steps(self, num_steps: int) -> None:
        """Raise ValueError unless at least one step is trained."""
        check_fraction(self.trained_fraction, self.num_trained(num_steps), num_steps)


class MixGrpoConfig(PolicyGradientConfig):
    """MixGRPO: a window of noisy, trained steps that slides over the iterations of the run."""

    type: Literal["mix_grpo"] = "mix_grpo"

    advantage_eps: float = Field(1e-8, gt=0)
    """Added to the standard deviation."""

    advantage_ddof: Literal[0, 1] = 1
    """0: population standard deviation (FlowGRPO); 1: unbiased (DanceGRPO)."""

    window_size: int = Field(4, ge=1)
    """Steps in the window."""

    strategy: Literal["progressive", "decay", "exp_decay", "random"] = "progressive"
    """How long the window stays at each place; random: a place drawn for each iteration."""

    stride: int = Field(1, ge=0)
    """Steps that the window moves by; 0 leaves it at the first steps."""

    iterations_per_window: int = Field(25, ge=1)
    """Iterations at a place; with decay and exp_decay, at the first one."""

    roll_back: bool = True
    """After the last place begin anew; else stay there."""

    untrained_tail: int = Field(2, ge=1)
    """Last steps that are never in the window."""

    log_ratio_coefficient: float = Field(0.0, ge=0)
    """Weight of half the squared log-ratio, a penalty on moving away from the sampling policy."""

    def num_trained(self, num_steps: int) -> int:
        """Return the trained steps of a trajectory of ``num_steps``."""
        return self.window_size

    def end_of_noise(self, num_steps: int) -> int:
        """Return one more than the last step that may have noise."""
        return num_steps - self.untrained_tail

    def check_steps(self, num_steps: int) -> None:
        """Raise ValueError unless the window fits."""
        if self.window_size > self.end_of_noise(num_steps):
            raise ValueError(
                f"algorithm.window_size ({self.window_size}) and algorithm.untrained_tail "
                f"({self.untrained_tail}) are more than rollout.num_steps ({num_steps}); lower one."
            )


class DiffusionNftConfig(AdvantagesConfig):
    """DiffusionNFT: contrasts good and bad samples on the forward process, without log-probs."""

    type: Literal["diffusion_nft"] = "diffusion_nft"

    beta: float = Field(1.0, gt=0)
    """Distance of the positive and the negative branch from the policy that sampled."""

    advantage_mode: Literal["all", "positive_only", "negative_only", "one_only", "binary"] = "all"
    """Which advantages count."""

    old_policy_decay: Literal["none", "ramp", "late_ramp"] = "none"
    """How much of the old policy, which generates, stays after n updates: nothing, so that it is
    the current one; min(0.001 n, 0.5); or, from update 75 on, min(0.0075 (n - 75), 0.999)."""

    kl_coefficient: float = Field(1e-4, ge=0)
    """Weight of the mean squared distance of velocities to the reference policy's."""

    trained_fraction: float = Field(0.99, gt=0, le=1)
    """Share of the schedule's noise levels that is trained, from the highest one."""

    def num_trained(self, num_steps: int) -> int:
        """Return the trained noise levels of a sample."""
        return int(num_steps * self.trained_fraction)

    def end_of_noise(self, num_steps: int) -> int:
        """Return 0: samples come from the ODE."""
        return 0

    def check_steps(self, num_steps: int) -> None:
        """Raise ValueError unless at least one noise level is trained."""
        check_fraction(self.trained_fraction, self.num_trained(num_steps), num_steps)


AlgorithmConfig = Annotated[
    FlowGrpoConfig
    | GrpoGuardConfig
    | FlowDppoConfig
    | DanceGrpoConfig
    | MixGrpoConfig
    | DdpoConfig
    | LongCatConfig
    | DiffusionNftConfig,
    Field(discriminator="type"),
]
"""An algorithm by its ``type``."""
