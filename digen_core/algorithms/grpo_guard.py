"""GRPO-Guard (arXiv:2510.22319): ratios that are centred and scaled alike at every step."""

from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from digen_core.algorithms.policy_gradient import FirstSteps
from digen_core.maths.names import TransitionName

if TYPE_CHECKING:
    from digen_core.maths.grpo import SurrogateLoss
    from digen_core.maths.replay import Replay


class GrpoGuard(FirstSteps):
    """GRPO-Guard: FlowGRPO with ratios that are centred and scaled alike at every step."""

    transitions: ClassVar[tuple[TransitionName, ...]] = (
        *("flow_sde", "dance", "wan_sde", "longcat_sde"),
    )
    needs_noise: ClassVar[bool] = True

    type: Literal["grpo_guard"] = "grpo_guard"

    clip_range: float = Field(2e-6, gt=0, lt=1)
    """Half-width of the clip of normalised ratios."""

    @property
    def ratio_clip(self) -> None:
        """None: normalised ratios are clipped instead."""
        return None

    def surrogate(self, replay: "Replay") -> "SurrogateLoss":
        """Return one loss per pair, [B], of normalised ratios."""
        from digen_core.maths.grpo_guard import guarded_surrogate

        return guarded_surrogate(
            replay.logprob,
            replay.behaviour_logprob,
            replay.divergence,
            replay.transition.std.flatten(),
            replay.sigma - replay.sigma_next,
            replay.advantage,
            clip_range=self.clip_range,
        )
