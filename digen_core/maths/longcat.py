"""LongCat-Video's weights of a step's losses.

Source: LongCat-Video (arXiv:2510.22200, section 3.3.1, eqs. 6-8). With Flow-GRPO's step at noise
level 1 the policy gradient with respect to the velocity is, per element,
3/2 * advantage * noise * k with k = sqrt(step_size * (1 - sigma) / sigma), and that of the KL has
the factor k^2: both vanish at high noise and for small steps. Hence

    policy weight = 1 / k = sqrt(sigma / ((1 - sigma) * step_size)),   KL weight = 1 / k^2.

Its other parts are the transition ``longcat_sde`` (truncated std), ``group_advantages`` with scale
"max_group", ``mixed_advantages`` of several rewards, a window of one step and one initial noise
for a group. Published settings: noise level 1, std at most 0.45, one step of the first six.

As published the weights are those of the step that is not truncated: where the std is truncated
the product 3/2 is not reached. Deviation: a public reimplementation averages the weights over the
batch; these are per pair. At pure noise sigma_max stands in, as in the step.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from digen_core.maths.flow_sde import odds_root
from digen_core.maths.tensors import is_refuted


class StepWeights(NamedTuple):
    """What to multiply a pair's loss terms with."""

    policy: Tensor  # [B]
    kl: Tensor  # [B]


def step_weights(sigma: Tensor, sigma_next: Tensor, *, sigma_max: float) -> StepWeights:
    """Return the weights of B pairs, for the policy term and for ``kl.transition_kl``.

    Args:
        sigma: [B] noise level before the step, in (0, 1].
        sigma_next: [B] noise level after it, below ``sigma``.
        sigma_max: the schedule's second noise level, which stands in for 1 in 1 - sigma.

    Raises:
        ValueError: if a step has no length.
    """
    step_size = sigma - sigma_next
    if is_refuted(step_size > 0):
        raise ValueError(f"sigma_next {sigma_next.tolist()} must be below sigma {sigma.tolist()}")
    policy = odds_root(sigma, sigma_max) / torch.sqrt(step_size)
    return StepWeights(policy, policy**2)
