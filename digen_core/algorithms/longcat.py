"""LongCat-Video (arXiv:2510.22200): losses weighted so that every step moves the policy alike."""

from typing import TYPE_CHECKING, ClassVar, Literal

from digen_core.algorithms.policy_gradient import FirstSteps
from digen_core.maths.names import AdvantageScale, KlScaling, TransitionName

if TYPE_CHECKING:
    from torch import Tensor

    from digen_core.maths.flow_sde import Transition
    from digen_core.maths.grpo import SurrogateLoss
    from digen_core.maths.longcat import StepWeights
    from digen_core.maths.replay import Replay


class LongCat(FirstSteps):
    """LongCat-Video: FlowGRPO with losses weighted so that every step moves the policy alike."""

    transitions: ClassVar[tuple[TransitionName, ...]] = ("longcat_sde", "flow_sde")

    type: Literal["longcat"] = "longcat"

    advantage_scale: AdvantageScale = "max_group"
    """Divide centred rewards by the standard deviation of the group, of the iteration, by the
    largest one of a group, or by 1."""

    kl: KlScaling = "gaussian"
    """gaussian: true KL of the transition; flowgrpo: that times the step size."""

    def surrogate(self, replay: "Replay") -> "SurrogateLoss":
        """Return the clipped surrogate of each pair, [B], weighted by its step."""
        found = super().surrogate(replay)
        return found._replace(per_pair=found.per_pair * _weights(replay).policy)

    def divergence(self, replay: "Replay", reference: "Transition") -> "Tensor":
        """Return [B] divergences from the reference policy's transition, weighted by the step."""
        return super().divergence(replay, reference) * _weights(replay).kl


def _weights(replay: "Replay") -> "StepWeights":
    from digen_core.maths.longcat import step_weights

    return step_weights(replay.sigma, replay.sigma_next, sigma_max=replay.sigma_max)
