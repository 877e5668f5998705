"""Algorithms on the forward process: clean latents, noised anew, in place of trajectories."""

from abc import abstractmethod
from typing import TYPE_CHECKING, ClassVar

from digen_core.algorithms.base import Algorithm

if TYPE_CHECKING:
    from digen_core.maths.diffusion_nft import NftLoss
    from digen_core.maths.replay import Noised


class ForwardProcess(Algorithm):
    """What every algorithm on clean latents has: any sampler serves it, without noise."""

    trains_clean: ClassVar[bool] = True

    @property
    def why_one_update(self) -> str:
        """Its loss is to the velocity of the policy that sampled."""
        return (
            f"algorithm.type {self.name()} compares with the velocity of the policy that sampled, "
            "which is the trained version itself in the first update only; use 1"
        )

    def end_of_noise(self, num_steps: int) -> int:
        """Return 0: samples come from the ODE."""
        return 0

    @abstractmethod
    def losses(self, pairs: "Noised") -> "NftLoss":
        """Return one loss per pair, [B]."""
