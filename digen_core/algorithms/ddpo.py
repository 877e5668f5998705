"""DDPO (arXiv:2305.13301): advantages by the running statistics of each prompt."""

from typing import TYPE_CHECKING, ClassVar, Literal, Self

from pydantic import Field, model_validator

from digen_core.algorithms.base import refuse_unused
from digen_core.algorithms.policy_gradient import FirstSteps

if TYPE_CHECKING:
    from digen_core.maths.advantages import Scored, Signal
    from digen_core.maths.ddpo import RewardHistory


class Ddpo(FirstSteps):
    """DDPO: advantages by the running statistics of each prompt."""

    keeps_history: ClassVar[bool] = True

    type: Literal["ddpo"] = "ddpo"

    advantage_eps: float = Field(1e-6, gt=0)
    """Added to the standard deviation."""

    buffer_size: int = Field(32, ge=1)
    """Rewards of a prompt that are remembered."""

    min_count: int = Field(16, ge=1)
    """Remembered rewards from which a prompt has statistics of its own; before that the
    iteration's are taken."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.min_count > self.buffer_size:
            raise ValueError(
                f"algorithm.min_count ({self.min_count}) is above algorithm.buffer_size "
                f"({self.buffer_size}); no prompt would ever have statistics of its own."
            )
        unused = ("mix", "advantage_scale", "advantage_ddof", "trimmed_ratio", "kl_reward")
        refuse_unused(self, unused, "has statistics of its own")
        return self

    def signal(self, scored: "Scored", history: "RewardHistory") -> "Signal":
        """Return advantages by each prompt's last rewards, and those with these added.

        No group is flat: equal rewards still differ from the prompt's earlier ones.
        """
        from digen_core.maths.advantages import Signal
        from digen_core.maths.ddpo import running_advantages

        values, history = running_advantages(
            scored.reward,
            scored.prompts,
            history,
            buffer_size=self.buffer_size,
            min_count=self.min_count,
            eps=self.advantage_eps,
        )
        return Signal(values.clamp(-self.max_advantage, self.max_advantage), frozenset(), history)
