"""What generation asks of the reference policy at trained steps: divergences, and velocities.

Divergences are taken off rewards. Velocities go with a trajectory to who trains it, which need not
ask then.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from digen_core.config.run import RunConfig
from digen_core.control.packing import by_step
from digen_core.maths.names import KlScaling
from digen_core.models.policy import Condition, Policy
from digen_core.models.trainable import reference_weights
from digen_core.rollout.steps import own_steps_of_group, steps_of_group


def reference_share(config: RunConfig) -> float:
    """Return which share of the velocities beside a sample's own are the reference policy's.

    A margin asks the policy, too, and so does a divergence of samples in another precision.
    """
    of_both = config.kl_reward and config.rollout.precision != "model"
    return 0.5 if config.algorithm.needs_margins or of_both else 1.0


@dataclass(frozen=True, slots=True)
class ReferenceUse:
    """For which samples of a batch the reference policy is asked at each step, and what for."""

    rows: Mapping[int, Sequence[int]]
    """Trained step -> those that train it, ascending."""

    scaling: KlScaling | None = None
    """Of the divergences that rewards are less by, which take all rows; None: of none."""

    kept: bool = False
    """Whether training compares with the velocities."""

    @classmethod
    def of(
        cls, config: RunConfig, group: tuple[int, int], samples: range, num_steps: int
    ) -> "ReferenceUse | None":
        """Return what a run asks; None if it asks for nothing.

        Of transitions that is asked at them, of samples that are trained clean once they are.

        Args:
            config: of the run.
            group: (iteration, index).
            samples: indices of the batch's samples in the group.
            num_steps: of their trajectories.
        """
        rewarded, kept = config.algorithm.reward_kl, config.generates_reference
        if rewarded is None and not kept:
            return None
        drawn = own_steps_of_group(config, *group, num_steps) if rewarded is None else ()
        size = config.rollout.group_size
        own_steps = [set().union(*drawn[sample::size]) for sample in range(size)] if drawn else ()
        trained = by_step(samples, steps_of_group(config, *group, num_steps).trained, own_steps)
        rows = {step: [own - samples.start for own in found] for step, found in trained.items()}
        return cls(rows, rewarded and rewarded[1], kept)

    def velocity(
        self, policy: Policy, step: int, x: Tensor, sigma: Tensor, condition: Condition
    ) -> Tensor:
        """Return the reference policy's velocities [n, ...]; 0 for rows that it is not asked for.

        It is asked once, whatever the rows: where a gang shares the weights all members ask alike.
        """
        rows = list(self.rows[step]) or [0]
        with reference_weights(policy) as reference:
            if len(rows) == len(x):
                return reference.velocity(x, sigma, condition)
            some = {name: value[rows] for name, value in condition.items()}
            asked = reference.velocity(x[rows], sigma[rows], some)
        found = torch.zeros(x.shape, dtype=asked.dtype, device=asked.device)
        found[rows] = asked
        return found
