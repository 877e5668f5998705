"""Algorithms on the ratios of sampled transitions: their settings, and a clipped surrogate."""

from typing import TYPE_CHECKING, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from digen_core.algorithms.base import Algorithm, Steps, check_fraction
from digen_core.maths.names import Correction, KlScaling
from digen_core.maths.windows import trained_steps

if TYPE_CHECKING:
    from torch import Tensor

    from digen_core.maths.flow_sde import Transition
    from digen_core.maths.grpo import SurrogateLoss
    from digen_core.maths.replay import Replay


class PolicyGradient(Algorithm):
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

    noise_weight: float = Field(0.0, ge=0)
    """Weigh the surrogate of each pair by the standard deviation of its step's noise times this
    (TempFlow-GRPO: 1.73), so that steps with more of it count more; 0: all steps count alike."""

    correction: Literal["none", Correction] = "none"
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

    @property
    def compares_with_start(self) -> bool:
        """With a correction, the proximal policy is that of the iteration's start."""
        return self.correction != "none"

    @property
    def reward_kl(self) -> tuple[float, KlScaling] | None:
        """Factor and scale of the KL divergence that is taken off the reward; None if it is not."""
        return (self.kl_reward, self.kl) if self.kl_reward else None

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

    def surrogate(self, replay: "Replay") -> "SurrogateLoss":
        """Return one loss per pair, [B], of ratios to ``replay.behaviour_logprob``."""
        from digen_core.maths.grpo import clipped_surrogate

        return clipped_surrogate(
            replay.logprob, replay.behaviour_logprob, replay.advantage, clip_range=self.clip_range
        )

    def losses(self, replay: "Replay") -> "SurrogateLoss":
        """Return the surrogate, weighted by the noise of its step if that is asked for."""
        found = self._corrected(replay)
        if not self.noise_weight:
            return found
        std = replay.transition.std.flatten(1).mean(1).to(found.per_pair.dtype)
        return found._replace(per_pair=self.noise_weight * std * found.per_pair)

    def _corrected(self, replay: "Replay") -> "SurrogateLoss":
        """Return the surrogate, of the stored or of recomputed behaviour log-probs.

        In an iteration's first update the trainer's own log-probs are those of the forward that
        carries the gradient: to recompute them costs nothing.
        """
        from digen_core.maths.correction import correction_weights

        if self.correction == "none":
            return self.surrogate(replay)
        low, high = self.correction_bounds
        proximal = replay.of_the_proximal()
        weights = correction_weights(
            proximal.behaviour_logprob,
            replay.behaviour_logprob,
            mode=self.correction,
            low=low,
            high=high,
        )
        found = self.surrogate(proximal)
        return found._replace(per_pair=weights * found.per_pair)

    def divergence(self, replay: "Replay", reference: "Transition") -> "Tensor":
        """Return [B] divergences from the reference policy's transition, scaled as ``kl`` says."""
        from digen_core.maths.kl import scaled_kl

        mean, std = replay.transition
        step_size = replay.sigma - replay.sigma_next
        return scaled_kl(mean, reference.mean, std, step_size, scaling=self.kl)


class FirstSteps(PolicyGradient):
    """What algorithms that train the first steps, or a window of them, have."""

    trained_fraction: float = Field(0.99, gt=0, le=1)
    """Share of the steps that is trained, from the first one; 0.99 leaves out the last step."""

    window: tuple[int, int, int] | None = None
    """(size, low, high): instead, train `size` steps that start at a place drawn for each iteration
    from [low, high - size]; steps outside the window are noiseless (Flow-GRPO-Fast)."""

    window_drawn_for: Literal["iteration", "group"] = "iteration"
    """Who has a window of its own: each iteration, or each group, so that an iteration trains steps
    all over the schedule (TempFlow-GRPO, with one step)."""

    @model_validator(mode="after")
    def _check_own_window(self) -> Self:
        if self.window_drawn_for == "iteration":
            return self
        if self.window is None:
            raise ValueError(
                "algorithm.window_drawn_for is 'group', but algorithm.window is null; set it to "
                "(size, low, high), or use 'iteration'."
            )
        if self.kl_reward:
            raise ValueError(
                f"algorithm.kl_reward is {self.kl_reward:g}, which is taken off step by step, but "
                "algorithm.window_drawn_for 'group' trains other steps in each group; use "
                "'iteration', or algorithm.kl_coefficient."
            )
        return self

    @property
    def own_noise(self) -> bool:
        """Whether the steps that a group's samples train are the noisy ones of that group."""
        return self.window_drawn_for == "group"

    @property
    def fewest_steps(self) -> int:
        """As few as leave one after the last window, which is without noise."""
        return self.window[2] + 1 if self.window else 1

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

    def steps(self, num_steps: int, iteration: int, generator: np.random.Generator) -> Steps:
        """Return the first share of all steps, or a window at a place that is drawn.

        Where it is drawn for each group, all places of windows.
        """
        if self.window and self.own_noise:
            _, low, high = self.window
            return Steps(tuple(range(low, high)), tuple(range(low, high)))
        window = self._drawn(num_steps, generator)
        return Steps(window, window)

    def own_steps(
        self, num_samples: int, num_steps: int, generator: np.random.Generator
    ) -> tuple[tuple[int, ...], ...]:
        """Return the group's window, for each sample; empty where it is the iteration's."""
        return (self._drawn(num_steps, generator),) * num_samples if self.own_noise else ()

    def _drawn(self, num_steps: int, generator: np.random.Generator) -> tuple[int, ...]:
        return tuple(
            trained_steps(
                num_steps, fraction=self.trained_fraction, window=self.window, generator=generator
            )
        )
