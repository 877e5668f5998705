"""MixGRPO (arXiv:2507.21802): a window of noisy, trained steps that slides over the iterations."""

from typing import TYPE_CHECKING, Literal

import numpy as np
from pydantic import Field

from digen_core.algorithms.base import Steps
from digen_core.algorithms.policy_gradient import PolicyGradient
from digen_core.maths.names import WindowStrategy
from digen_core.maths.windows import mix_grpo_window, num_tail_steps

if TYPE_CHECKING:
    from digen_core.maths.grpo import SurrogateLoss
    from digen_core.maths.replay import Replay


class MixGrpo(PolicyGradient):
    """MixGRPO: a window of noisy, trained steps that slides over the iterations of the run."""

    type: Literal["mix_grpo"] = "mix_grpo"

    advantage_eps: float = Field(1e-8, gt=0)
    """Added to the standard deviation."""

    advantage_ddof: Literal[0, 1] = 1
    """0: population standard deviation (FlowGRPO); 1: unbiased (DanceGRPO)."""

    window_size: int = Field(4, ge=1)
    """Steps in the window."""

    strategy: WindowStrategy = "progressive"
    """How long the window stays at each place; random: a place drawn for each iteration."""

    stride: int = Field(1, ge=0)
    """Steps that the window moves by; 0 leaves it at the first steps."""

    iterations_per_window: int = Field(25, ge=1)
    """Iterations at a place; with decay and exp_decay, at the first one."""

    roll_back: bool = True
    """After the last place begin anew; else stay there."""

    untrained_tail: int = Field(2, ge=1)
    """Last steps that are never in the window."""

    tail_fraction: float = Field(1.0, gt=0, le=1)
    """Share of the steps after the window that is taken, with noise levels that are spread anew, as
    MixGRPO-Flash does (0.4; Flash* 0.2), with rollout.solver dpmpp_2m; 1 takes them all."""

    log_ratio_coefficient: float = Field(0.0, ge=0)
    """Weight of half the squared log-ratio, a penalty on moving away from the sampling policy."""

    @property
    def shortens(self) -> bool:
        """Whether fewer steps are taken after the window than the schedule has."""
        return self.tail_fraction < 1

    def num_taken(self, num_steps: int, last: int) -> int:
        """Return how many steps are taken, of which ``last`` is the window's last one."""
        return last + 1 + num_tail_steps(num_steps, last, self.tail_fraction)

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

    def steps(self, num_steps: int, iteration: int, generator: np.random.Generator) -> Steps:
        """Return the iteration's window: its steps are noisy and trained."""
        window = mix_grpo_window(
            iteration,
            num_steps=self.end_of_noise(num_steps),
            size=self.window_size,
            strategy=self.strategy,
            stride=self.stride,
            iterations=self.iterations_per_window,
            roll_back=self.roll_back,
            generator=generator,
        )
        return Steps(tuple(window), tuple(window))

    def losses(self, replay: "Replay") -> "SurrogateLoss":
        """Return the surrogate of each pair, [B], with the penalty on its log-ratio."""
        from digen_core.maths.grpo import squared_log_ratio

        found = super().losses(replay)
        if not self.log_ratio_coefficient:
            return found
        penalty = squared_log_ratio(replay.logprob, replay.behaviour_logprob)
        return found._replace(per_pair=found.per_pair + self.log_ratio_coefficient * penalty)
