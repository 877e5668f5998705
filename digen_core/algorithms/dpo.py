"""Diffusion-DPO (arXiv:2311.12908), online: the best of each group against the worst.

The source is that of `digen_core.maths.dgpo`.
"""

from typing import TYPE_CHECKING, Final, Literal, Self

from pydantic import Field, model_validator

from digen_core.algorithms.base import refuse_unused
from digen_core.algorithms.dgpo import Preferences

if TYPE_CHECKING:
    from torch import Tensor

    from digen_core.maths.advantages import Scored, Signal
    from digen_core.maths.ddpo import RewardHistory
    from digen_core.maths.replay import ForwardLoss, Noised

_UNUSED: Final = (
    "mix",
    "advantage_scale",
    "advantage_eps",
    "advantage_ddof",
    "trimmed_ratio",
    "max_advantage",
)


class Dpo(Preferences):
    """Diffusion-DPO, online: prefers the best sample of each group to the worst."""

    type: Literal["dpo"] = "dpo"

    best_of: Literal[2] = 2
    """The best sample of each group and the worst are trained."""

    beta: float = Field(2000.0, gt=0)
    """How sharply the preference counts."""

    @model_validator(mode="after")
    def _check_unused(self) -> Self:
        why = "asks only who of a group has the best reward and who the worst"
        refuse_unused(self, _UNUSED, why)
        return self

    @property
    def compares_with_start(self) -> bool:
        """Its loss is to the reference policy alone."""
        return False

    def signal(self, scored: "Scored", history: "RewardHistory") -> "Signal":
        """Return [B, K]: beta times the weight of the pair for the best, less it for the worst.

        Of a group of equal rewards, which is flat, 0.
        """
        import torch

        from digen_core.maths.advantages import Signal
        from digen_core.maths.dgpo import best_and_worst, group_weights

        flat = super().signal(scored._replace(step_values=None), history).flat
        assert scored.step_values is not None
        chosen = best_and_worst(scored.reward, scored.owner)
        chosen[torch.tensor([group in flat for group in scored.owner.tolist()])] = 0.0
        trained = chosen.bool()
        values = chosen.double()[:, None].repeat(1, scored.step_values.shape[1])
        values[trained] *= self.beta * group_weights(
            chosen[trained], scored.step_values[trained], scored.owner[trained], beta=self.beta
        )
        return Signal(values, flat, history)

    def compared(self, rewards: "Tensor", margins: "Tensor") -> "Tensor":
        """Return [P, K] of the best sample and the worst; of equal rewards P is 0."""
        import torch

        from digen_core.maths.dgpo import best_and_worst, implicit_differences

        trained = best_and_worst(rewards, torch.zeros(len(rewards), dtype=torch.long)).bool()
        return implicit_differences(rewards[trained], margins[trained], beta=self.beta / 2)

    def losses(self, pairs: "Noised") -> "ForwardLoss":
        """Return one loss per pair, [B]."""
        from digen_core.maths.dgpo import preference_loss
        from digen_core.maths.replay import ForwardLoss

        found = preference_loss(pairs, reference_coefficient=self.kl_coefficient)
        return ForwardLoss(found.per_pair, found.reference)
