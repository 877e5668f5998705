"""What generation asks of the reference policy at trained steps: divergences, and velocities.

Divergences are taken off rewards. Velocities go with a trajectory to who trains it, which need not
ask then.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from digen_core.config.run import RunConfig
from digen_core.control.packing import by_step
from digen_core.maths.names import KlScaling
from digen_core.models.policy import Condition, Policy
from digen_core.models.trainable import reference_weights
from digen_core.rollout.rows import GroupRows, Rows
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
    def of(cls, config: RunConfig, rows: Rows, num_steps: int) -> "ReferenceUse | None":
        """Return what a run asks; None if it asks for nothing.

        Of transitions that is asked at them, of samples that are trained clean once they are.

        Args:
            config: of the run.
            rows: the batch's samples.
            num_steps: of their trajectories.
        """
        rewarded, kept = config.algorithm.reward_kl, config.generates_reference
        if rewarded is None and not kept:
            return None
        trained, first = dict[int, list[int]](), 0
        for part in rows.parts:
            for step, samples in _trained_by(config, part, num_steps, all_=rewarded is not None):
                own = [first + sample - part.samples.start for sample in samples]
                trained.setdefault(step, []).extend(own)
            first += len(part)
        return cls(trained, rewarded and rewarded[1], kept)

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


def _trained_by(
    config: RunConfig, part: GroupRows, num_steps: int, *, all_: bool
) -> Iterable[tuple[int, Sequence[int]]]:
    """Return the trained steps of a group, each with the samples that train it, or with all."""
    drawn = () if all_ else own_steps_of_group(config, *part.group, num_steps)
    size = config.rollout.group_size
    own_steps = [set().union(*drawn[sample::size]) for sample in range(size)] if drawn else ()
    trained = steps_of_group(config, *part.group, num_steps).trained
    return by_step(part.samples, trained, own_steps).items()
