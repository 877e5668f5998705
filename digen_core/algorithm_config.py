"""The algorithms that a run can choose by ``algorithm.type``, and their settings.

Importing this module must not import torch. Formulas and sources: docs/algorithms.md.
"""

from typing import Annotated, ClassVar, Literal, Self, get_args

from pydantic import Field, model_validator

from digen_core.strict import Strict

Transition = Literal["flow_sde", "cps", "dance", "wan_sde", "longcat_sde"]


def _check_fraction(fraction: float, num_trained: int, num_steps: int) -> None:
    if num_trained < 1:
        raise ValueError(
            f"algorithm.trained_fraction ({fraction}) of rollout.num_steps ({num_steps}) is no "
            "step at all; raise one of them."
        )


class _Advantages(Strict):
    """What every algorithm makes of rewards."""

    transitions: ClassVar[tuple[Transition, ...]] = get_args(Transition)
    """Stochastic samplers that the algorithm's maths holds for."""

    needs_noise: ClassVar[bool] = False
    """Whether the loss asks where the sampling policy's step would have gone without its noise."""

    advantage_scale: Literal["group", "batch", "max_group", "none"] = "group"
    """Divide centred rewards by the standard deviation of the group, of the iteration, by the
    largest one of a group, or by 1."""

    advantage_eps: float = Field(1e-4, gt=0)
    """Added to that standard deviation."""

    advantage_ddof: Literal[0, 1] = 0
    """0: population standard deviation (FlowGRPO); 1: unbiased (DanceGRPO)."""

    max_advantage: float = Field(5.0, gt=0)
    """Advantages are clamped to plus or minus this."""

    mix: Literal["rewards", "advantages"] = "rewards"
    """Several rewards: advantages of their weighted sum, or the weighted sum of the advantages that
    each of them gives, so that each counts by its weight whatever its scale."""

    best_of: int | None = Field(None, ge=2)
    """Train this many samples of each group, the best half and the worst half (DanceGRPO's
    best-of-n); null trains all."""

    @property
    def needs_all_rewards(self) -> bool:
        """Whether advantages wait for the rewards of all groups."""
        return self.advantage_scale in ("batch", "max_group")


class _PolicyGradient(_Advantages):
    """What every algorithm on the ratios of sampled transitions has."""

    clip_range: float = Field(1e-4, gt=0, lt=1)
    """Half-width of the importance-ratio clip. Small because log-probs are means over the latent's
    elements: clip ranges do not carry over between resolutions."""

    kl_coefficient: float = Field(0.0, ge=0)
    """Weight of the KL divergence to the reference policy (the base model)."""

    kl: Literal["gaussian", "flowgrpo"] = "flowgrpo"
    """gaussian: true KL of the transition; flowgrpo: that times the step size, as published."""

    correction: Literal["none", "truncate", "icepop", "reject"] = "none"
    """For samples of another version, or of other arithmetic, than the trained one. none: ratios
    are to the log-probs stored with the samples. Else they are to log-probs that the trainer takes
    itself, and w = exp(recomputed - stored) weighs each pair: truncate: min(w, high); icepop: w
    within the bounds, 0 outside; reject: 1 within, 0 outside."""

    correction_bounds: tuple[float, float] = (0.999, 1.001)
    """(low, high) of w, which is close to 1: log-probs are means over the latent's elements."""

    @model_validator(mode="after")
    def _check_bounds(self) -> Self:
        low, high = self.correction_bounds
        if not 0 <= low < high:
            raise ValueError(
                f"algorithm.correction_bounds are {[low, high]}; needs 0 <= low < high."
            )
        return self


class _FirstSteps(_PolicyGradient):
    """What algorithms that train the first steps, or a window of them, have."""

    trained_fraction: float = Field(0.99, gt=0, le=1)
    """Share of the steps that is trained, from the first one; 0.99 leaves out the last step."""

    window: tuple[int, int, int] | None = None
    """(size, low, high): instead, train `size` steps that start at a place drawn for each iteration
    from [low, high - size]; steps outside the window are noiseless (Flow-GRPO-Fast)."""

    def num_trained(self, num_steps: int) -> int:
        """Return the trained steps of a trajectory of ``num_steps``."""
        return self.window[0] if self.window else int(num_steps * self.trained_fraction)

    def end_of_noise(self, num_steps: int) -> int:
        """Return one more than the last step that may have noise."""
        return self.window[2] if self.window else int(num_steps * self.trained_fraction)

    def check_steps(self, num_steps: int) -> None:
        """Raise ValueError unless at least one step is trained, and all there are."""
        if self.window is None:
            _check_fraction(self.trained_fraction, self.num_trained(num_steps), num_steps)
            return
        size, low, high = self.window
        if not (size >= 1 and low >= 0 and low + size <= high <= num_steps):
            raise ValueError(
                f"algorithm.window (size, low, high) is {[size, low, high]}; needs size >= 1 and "
                f"0 <= low <= high - size, high <= rollout.num_steps ({num_steps})."
            )


class FlowGrpoConfig(_FirstSteps):
    """FlowGRPO: a clipped surrogate on the ratio of every trained transition."""

    type: Literal["flow_grpo"] = "flow_grpo"


class GrpoGuardConfig(_FirstSteps):
    """GRPO-Guard: FlowGRPO with ratios that are centred and scaled alike at every step."""

    transitions: ClassVar[tuple[Transition, ...]] = ("flow_sde", "dance", "wan_sde", "longcat_sde")

    needs_noise: ClassVar[bool] = True

    type: Literal["grpo_guard"] = "grpo_guard"

    clip_range: float = Field(2e-6, gt=0, lt=1)
    """Half-width of the clip of normalised ratios."""


class FlowDppoConfig(_FirstSteps):
    """Flow-DPPO: FlowGRPO with a bound on the exact divergence in place of the ratio clip."""

    needs_noise: ClassVar[bool] = True

    type: Literal["flow_dppo"] = "flow_dppo"

    max_divergence: float = Field(1e-5, gt=0)
    """Mean over the latent's elements of the divergence from the policy that sampled, above which
    a pair may no longer move further away. Takes the place of clip_range, which is unused."""


class DdpoConfig(_FirstSteps):
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
        for name in ("mix", "advantage_scale", "advantage_ddof"):
            default, found = type(self).model_fields[name].default, getattr(self, name)
            if found != default:
                raise ValueError(
                    f"algorithm.{name} {found!r} is not for ddpo, which has statistics of its own; "
                    f"use {default!r}."
                )
        return self


class LongCatConfig(_FirstSteps):
    """LongCat-Video: FlowGRPO with losses weighted so that every step moves the policy alike."""

    transitions: ClassVar[tuple[Transition, ...]] = ("longcat_sde", "flow_sde")

    type: Literal["longcat"] = "longcat"

    advantage_scale: Literal["group", "batch", "max_group", "none"] = "max_group"
    """Divide centred rewards by the standard deviation of the group, of the iteration, by the
    largest one of a group, or by 1."""

    kl: Literal["gaussian", "flowgrpo"] = "gaussian"
    """gaussian: true KL of the transition; flowgrpo: that times the step size."""


class DanceGrpoConfig(_PolicyGradient):
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
        _check_fraction(self.trained_fraction, self.num_trained(num_steps), num_steps)


class MixGrpoConfig(_PolicyGradient):
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


class DiffusionNftConfig(_Advantages):
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
        _check_fraction(self.trained_fraction, self.num_trained(num_steps), num_steps)


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
