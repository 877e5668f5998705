"""The base of the algorithms: what every one makes of rewards, and what it says of itself."""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple, get_args

import numpy as np
from pydantic import Field

from digen_core.maths.names import AdvantageMix, AdvantageScale, KlScaling, TransitionName
from digen_core.strict import Strict

if TYPE_CHECKING:
    from digen_core.maths.advantages import Scored, Signal
    from digen_core.maths.ddpo import RewardHistory


class Steps(NamedTuple):
    """Steps of an iteration's trajectories, ascending."""

    noisy: tuple[int, ...]  # the others are plain Euler steps of the ODE
    trained: tuple[int, ...]


def check_fraction(fraction: float, num_trained: int, num_steps: int) -> None:
    """Raise ValueError if ``trained_fraction`` selects no step."""
    if num_trained < 1:
        raise ValueError(
            f"algorithm.trained_fraction ({fraction}) of rollout.num_steps ({num_steps}) is no "
            "step at all; raise one of them."
        )


def check_num_levels(num_levels: int, fraction: float, num_steps: int) -> None:
    """Raise ValueError if ``trained_fraction`` leaves fewer noise levels than are to be drawn."""
    there = int(num_steps * fraction)
    if there < num_levels:
        raise ValueError(
            f"algorithm.trained_fraction ({fraction:g}) of rollout.num_steps ({num_steps}) leaves "
            f"{there} of the noise levels, fewer than algorithm.num_levels ({num_levels}); lower "
            "that one."
        )


def refuse_unused(algorithm: "Algorithm", names: Iterable[str], why: str) -> None:
    """Raise ValueError if one of the settings that an algorithm does not use is set.

    Args:
        algorithm: with its settings.
        names: of those.
        why: follows "which".
    """
    for name in names:
        default, found = type(algorithm).model_fields[name].default, getattr(algorithm, name)
        if found != default:
            raise ValueError(
                f"algorithm.{name} {found!r} is not for {algorithm.type}, which {why}; use "
                f"{default!r}."
            )


class Algorithm(Strict, ABC):
    """What every algorithm makes of rewards."""

    transitions: ClassVar[tuple[TransitionName, ...]] = get_args(TransitionName)
    """Stochastic samplers that the algorithm's maths holds for."""

    needs_noise: ClassVar[bool] = False
    """Whether the loss asks where the sampling policy's step would have gone without its noise."""

    trains_clean: ClassVar[bool] = False
    """Whether clean latents are trained, noised anew, in place of sampled transitions."""

    needs_margins: ClassVar[bool] = False
    """Whether advantages are made of how far each sample's matching loss is above the base's."""

    keeps_history: ClassVar[bool] = False
    """Whether advantages are made of a prompt's earlier rewards, too: then no group is skipped."""

    type: str

    advantage_scale: AdvantageScale = "group"
    """Divide centred rewards by the standard deviation of the group, of the iteration, by the
    largest one of a group, or by 1."""

    advantage_eps: float = Field(1e-4, gt=0)
    """Added to that standard deviation."""

    advantage_ddof: Literal[0, 1] = 0
    """0: population standard deviation (FlowGRPO); 1: unbiased (DanceGRPO)."""

    trimmed_ratio: float = Field(0.0, ge=0, lt=1)
    """Share of each group's rewards, the lowest ones, that is left out of its mean and standard
    deviation; they get an advantage by those of the others (MixGRPO)."""

    max_advantage: float = Field(5.0, gt=0)
    """Advantages are clamped to plus or minus this."""

    mix: AdvantageMix = "rewards"
    """Several rewards: advantages of their weighted sum, or the weighted sum of the advantages that
    each of them gives, so that each counts by its weight whatever its scale."""

    best_of: int | None = Field(None, ge=2)
    """Train this many samples of each group, the best half and the worst half (DanceGRPO's
    best-of-n); null trains all."""

    kl_coefficient: float = Field(0.0, ge=0)
    """Weight of the divergence from the reference policy (the base model)."""

    @classmethod
    def name(cls) -> str:
        """Return the ``type`` that chooses it."""
        name: str = cls.model_fields["type"].default
        return name

    @property
    def needs_all_rewards(self) -> bool:
        """Whether advantages wait for the rewards of all groups."""
        return self.keeps_history or self.advantage_scale in ("batch", "max_group")

    @property
    def ratio_clip(self) -> float | None:
        """Half-width of the clip of importance ratios; None where they are not clipped as such."""
        return None

    @property
    def reward_kl(self) -> tuple[float, KlScaling] | None:
        """Factor and scale of the KL divergence that is taken off the reward; None if it is not."""
        return None

    @property
    def compares_with_start(self) -> bool:
        """Whether losses compare with the policy with which the iteration began, not with samples'.

        After the first of several updates the trained version is another one.
        """
        return False

    @property
    def fewest_steps(self) -> int:
        """Steps below which a trajectory leaves no choice of what is trained.

        `check_steps` may take more.
        """
        return 1

    @property
    def shares_noise(self) -> bool:
        """Whether the samples of a group are noised alike on the forward process."""
        return False

    @property
    def own_noise(self) -> bool:
        """Whether the steps that a group's samples train are the noisy ones of that group."""
        return False

    @property
    def redraws(self) -> bool:
        """Whether samples that have their own trained steps get others in each epoch."""
        return False

    @property
    def shortens(self) -> bool:
        """Whether fewer steps are taken after the last noisy one than the schedule has."""
        return False

    def num_taken(self, num_steps: int, last: int) -> int:
        """Return how many steps are taken of a schedule.

        Args:
            num_steps: of the schedule.
            last: index of the last noisy one.
        """
        return num_steps

    @property
    def keeps_old(self) -> bool:
        """Whether another policy than the trained one generates, which lags behind it."""
        return False

    def old_share(self, num_updates: int) -> float:
        """Return the share of the old policy that stays after ``num_updates`` updates."""
        return 0.0

    @abstractmethod
    def num_trained(self, num_steps: int) -> int:
        """Return the trained steps of a trajectory of ``num_steps``."""

    @abstractmethod
    def end_of_noise(self, num_steps: int) -> int:
        """Return one more than the last step that may have noise."""

    @abstractmethod
    def check_steps(self, num_steps: int) -> None:
        """Raise ValueError unless at least one step is trained, and all there are."""

    @abstractmethod
    def steps(self, num_steps: int, iteration: int, generator: np.random.Generator) -> Steps:
        """Return the noisy and the trained steps of an iteration.

        Args:
            num_steps: denoising steps of a trajectory.
            iteration: from 0.
            generator: of the iteration.
        """

    def own_steps(
        self, num_samples: int, num_steps: int, generator: np.random.Generator
    ) -> tuple[tuple[int, ...], ...]:
        """Return the steps that each sample of a group trains, of those of the iteration.

        Args:
            num_samples: of the group.
            num_steps: denoising steps of a trajectory.
            generator: of the group.

        Returns:
            As many for each sample, ascending; empty: all samples train those of the iteration.
        """
        return ()

    def signal(self, scored: "Scored", history: "RewardHistory") -> "Signal":
        """Return advantages of the rewards of some groups.

        Args:
            scored: the rewards.
            history: rewards of each prompt in earlier iterations, for those who keep them.
        """
        from digen_core.maths.advantages import Scaling, group_signal

        scaling = Scaling(
            scale=self.advantage_scale,
            eps=self.advantage_eps,
            ddof=self.advantage_ddof,
            trimmed_ratio=self.trimmed_ratio,
        )
        factor, _ = self.reward_kl or (0.0, None)
        return group_signal(
            scored,
            mix=self.mix,
            kl_factor=factor,
            max_advantage=self.max_advantage,
            history=history,
            **scaling,
        )
