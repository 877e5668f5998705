"""What the settings of several algorithms share.

Importing this module must not import torch.
"""

from typing import ClassVar, Literal, Self, get_args

from pydantic import Field, model_validator

from digen_core.config.base import Strict

Transition = Literal["flow_sde", "cps", "dance", "wan_sde", "longcat_sde"]
KlScaling = Literal["gaussian", "flowgrpo"]


def check_fraction(fraction: float, num_trained: int, num_steps: int) -> None:
    """Raise ValueError if a share of the steps is none."""
    if num_trained < 1:
        raise ValueError(
            f"algorithm.trained_fraction ({fraction}) of rollout.num_steps ({num_steps}) is no "
            "step at all; raise one of them."
        )


class AdvantagesConfig(Strict):
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

    trimmed_ratio: float = Field(0.0, ge=0, lt=1)
    """Share of each group's rewards, the lowest ones, that is left out of its mean and standard
    deviation; they get an advantage by those of the others (MixGRPO)."""

    max_advantage: float = Field(5.0, gt=0)
    """Advantages are clamped to plus or minus this."""

    mix: Literal["rewards", "advantages"] = "rewards"
    """Several rewards: advantages of their weighted sum, or the weighted sum of the advantages that
    each of them gives, so that each counts by its weight whatever its scale."""

    best_of: int | None = Field(None, ge=2)
    """Train this many samples of each group, the best half and the worst half (DanceGRPO's
    best-of-n); null trains all."""

    @property
    def ratio_clip(self) -> float | None:
        """Half-width of the clip of importance ratios; None where they are not clipped as such."""
        return None

    @property
    def needs_all_rewards(self) -> bool:
        """Whether advantages wait for the rewards of all groups."""
        return self.advantage_scale in ("batch", "max_group")


class PolicyGradientConfig(AdvantagesConfig):
    """What every algorithm on the ratios of sampled transitions has."""

    clip_range: float = Field(1e-4, gt=0, lt=1)
    """Half-width of the importance-ratio clip. Small because log-probs are means over the latent's
    elements: clip ranges do not carry over between resolutions."""

    kl_coefficient: float = Field(0.0, ge=0)
    """Weight of the KL divergence to the reference policy (the base model)."""

    kl: KlScaling = "flowgrpo"
    """gaussian: true KL of the transition; flowgrpo: that times the step size, as published."""

    kl_reward: float = Field(0.0, ge=0)
    """Factor of the KL divergence that is taken off the reward, step by step, before advantages are
    made of it: they differ between the steps of a sample. Like kl, it is to the base model."""

    correction: Literal["none", "recompute", "truncate", "icepop", "reject"] = "none"
    """For samples of another version, or of other arithmetic, than the trained one. none: ratios
    are to the log-probs stored with the samples. Else they are to log-probs that the trainer takes
    itself, and w = exp(recomputed - stored) may weigh each pair: recompute: it does not; truncate:
    min(w, high); icepop: w within the bounds, 0 outside; reject: 1 within, 0 outside."""

    correction_bounds: tuple[float, float] = (0.999, 1.001)
    """(low, high) of w, which is close to 1: log-probs are means over the latent's elements."""

    @property
    def ratio_clip(self) -> float | None:
        """Half-width of the clip of importance ratios to the log-probs of whoever sampled."""
        return self.clip_range if self.correction == "none" else None

    @model_validator(mode="after")
    def _check_terms(self) -> Self:
        low, high = self.correction_bounds
        if not 0 <= low <= 1 <= high or low == high:
            raise ValueError(
                f"algorithm.correction_bounds are {[low, high]}; needs 0 <= low <= 1 <= high and "
                "low < high: w is 1 for what the trained version sampled."
            )
        if self.kl_reward and self.mix == "advantages":
            raise ValueError(
                "algorithm.kl_reward is taken off the sum of the rewards, but algorithm.mix "
                "'advantages' makes none; use mix 'rewards', or algorithm.kl_coefficient."
            )
        return self


class FirstStepsConfig(PolicyGradientConfig):
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
            check_fraction(self.trained_fraction, self.num_trained(num_steps), num_steps)
            return
        size, low, high = self.window
        if not (size >= 1 and low >= 0 and low + size <= high <= num_steps):
            raise ValueError(
                f"algorithm.window (size, low, high) is {[size, low, high]}; needs size >= 1 and "
                f"0 <= low <= high - size, high <= rollout.num_steps ({num_steps})."
            )
