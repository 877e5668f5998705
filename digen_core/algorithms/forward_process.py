"""Algorithms on the forward process: clean latents, noised anew, in place of trajectories."""

from abc import abstractmethod
from typing import TYPE_CHECKING, ClassVar

from digen_core.algorithms.base import Algorithm
from digen_core.maths.names import OldPolicyDecay

if TYPE_CHECKING:
    from digen_core.maths.replay import ForwardLoss, Noised


class ForwardProcess(Algorithm):
    """What every algorithm on clean latents has: any sampler serves it, without noise."""

    trains_clean: ClassVar[bool] = True

    old_policy_decay: OldPolicyDecay = "none"
    """How much of the old policy, which generates, stays after n updates: nothing, so that it is
    the current one; min(0.001 n, 0.5) with ramp, min(0.001 n, 0.3) with low_ramp; or, with
    late_ramp, from update 75 on min(0.0075 (n - 75), 0.999)."""

    @property
    def keeps_old(self) -> bool:
        """Whether another policy than the trained one generates, which lags behind it."""
        return self.old_policy_decay != "none"

    def old_share(self, num_updates: int) -> float:
        """Return the share of the old policy that stays after ``num_updates`` updates."""
        from digen_core.maths.forward_process import old_policy_decay

        return old_policy_decay(num_updates, self.old_policy_decay)

    @property
    def compares_with_start(self) -> bool:
        """Its loss is to the velocity of what generated when the iteration began."""
        return True

    @property
    def redraws(self) -> bool:
        """Noise levels are drawn for each use of a sample."""
        return True

    def end_of_noise(self, num_steps: int) -> int:
        """Return 0: samples come from the ODE."""
        return 0

    @abstractmethod
    def losses(self, pairs: "Noised") -> "ForwardLoss":
        """Return one loss per pair, [B]."""
