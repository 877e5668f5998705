"""Flow-DPPO: a bound on the exact divergence from the sampling policy in place of the ratio clip.

The source is that of `digen_core.maths.flow_dppo`.
"""

from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from digen_core.algorithms.policy_gradient import FirstSteps

if TYPE_CHECKING:
    from digen_core.maths.grpo import SurrogateLoss
    from digen_core.maths.replay import Replay


class FlowDppo(FirstSteps):
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

    def surrogate(self, replay: "Replay") -> "SurrogateLoss":
        """Return one loss per pair, [B]; 0 for those that leave the trust region."""
        from digen_core.maths.flow_dppo import divergence_masked_surrogate

        return divergence_masked_surrogate(
            replay.logprob,
            replay.behaviour_logprob,
            replay.divergence,
            replay.advantage,
            threshold=self.max_divergence,
        )
