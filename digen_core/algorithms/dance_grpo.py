"""DanceGRPO (arXiv:2505.07818): all steps but the last are noisy, a random share is trained."""

from typing import Literal, Self

import numpy as np
import numpy.typing as npt
from pydantic import Field, model_validator

from digen_core.algorithms.base import Steps, check_fraction
from digen_core.algorithms.policy_gradient import PolicyGradient
from digen_core.maths.windows import random_trained_steps


class DanceGrpo(PolicyGradient):
    """DanceGRPO: all steps but the last are noisy, and a random share of them is trained."""

    type: Literal["dance_grpo"] = "dance_grpo"

    advantage_eps: float = Field(1e-8, gt=0)
    """Added to the standard deviation."""

    advantage_ddof: Literal[0, 1] = 1
    """0: population standard deviation (FlowGRPO); 1: unbiased (DanceGRPO)."""

    trained_fraction: float = Field(0.6, gt=0, le=1)
    """Share of all steps but the last that is trained."""

    steps_drawn_for: Literal["iteration", "sample"] = "iteration"
    """Who has its own trained steps: each iteration, so that a pack holds many samples of few
    steps, or each sample, as published."""

    def num_trained(self, num_steps: int) -> int:
        """Return the trained steps of a trajectory of ``num_steps``."""
        return int((num_steps - 1) * self.trained_fraction)

    def end_of_noise(self, num_steps: int) -> int:
        """Return one more than the last step that has noise."""
        return num_steps - 1

    def check_steps(self, num_steps: int) -> None:
        """Raise ValueError unless at least one step is trained."""
        check_fraction(self.trained_fraction, self.num_trained(num_steps), num_steps)

    @model_validator(mode="after")
    def _check_own_steps(self) -> Self:
        if self.steps_drawn_for == "sample" and self.kl_reward:
            raise ValueError(
                f"algorithm.kl_reward is {self.kl_reward:g}, which is taken off step by step, but "
                "algorithm.steps_drawn_for 'sample' trains other steps of each sample; use "
                "'iteration', or algorithm.kl_coefficient."
            )
        return self

    def steps(self, num_steps: int, iteration: int, generator: np.random.Generator) -> Steps:
        """Return all steps but the last as noisy, and those of them that are drawn as trained.

        Where they are drawn for each sample, all of them are trained by some.
        """
        noisy = tuple(range(num_steps - 1))
        if self.steps_drawn_for == "sample":
            return Steps(noisy, noisy)
        (drawn,) = self._drawn(1, num_steps, generator)
        return Steps(noisy, tuple(int(step) for step in drawn))

    def own_steps(
        self, num_samples: int, num_steps: int, generator: np.random.Generator
    ) -> tuple[tuple[int, ...], ...]:
        """Return what is drawn for each sample; empty where it is drawn for the iteration."""
        if self.steps_drawn_for == "iteration":
            return ()
        drawn = self._drawn(num_samples, num_steps, generator)
        return tuple(tuple(int(step) for step in own) for own in drawn)

    def _drawn(
        self, num_samples: int, num_steps: int, generator: np.random.Generator
    ) -> npt.NDArray[np.int64]:
        """Return [num_samples, K] of all steps but the last."""
        trained = self.num_trained(num_steps)
        return random_trained_steps(num_samples, num_steps - 1, trained, generator)
