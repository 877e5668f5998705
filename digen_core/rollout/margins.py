"""Margins of finished samples: by how much their matching losses are above the base model's."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from digen_core.config.run import RunConfig
from digen_core.maths.dgpo import matching_loss
from digen_core.maths.forward_process import noised
from digen_core.models.policy import Condition, Policy
from digen_core.models.trainable import reference_weights
from digen_core.rollout.nonfinite import nonfinite_rows, with_zeros
from digen_core.rollout.sampler import DenoisedStep
from digen_core.rollout.steps import steps_of_iteration
from digen_core.seeding import FORWARD_NOISE, noise_of


def with_margins(
    last: DenoisedStep,
    policy: Policy,
    condition: Condition,
    sigmas: Tensor,
    *,
    config: RunConfig,
    group: tuple[int, int],
    samples: range,
) -> DenoisedStep:
    """Return the last step of some trajectories with the margins of what they ended with.

    One that is NaN or infinite becomes 0, and is named. The other arguments are those of `margins`.
    """
    levels = steps_of_iteration(config, group[0]).trained
    found = margins(
        policy,
        last.x_next,
        condition,
        sigmas,
        levels=levels,
        config=config,
        group=group,
        samples=samples,
    )
    bad = nonfinite_rows({f"margin at the noise level of step {n}": m for n, m in found.items()})
    if bad:
        found = {level: with_zeros(value, bad) for level, value in found.items()}
    named = {samples[row]: what for row, what in bad.items()}
    return replace(last, margins=found, nonfinite={**named, **last.nonfinite})


@torch.no_grad()
def margins(
    policy: Policy,
    x_0: Tensor,
    condition: Condition,
    sigmas: Tensor,
    *,
    levels: Sequence[int],
    config: RunConfig,
    group: tuple[int, int],
    samples: range,
) -> dict[int, Tensor]:
    """Return the margins of some samples of a group at noise levels: level -> [n].

    Args:
        policy: the version that is asked; its base model is the reference.
        x_0: [n, ...] clean latents.
        condition: embeddings of the group's prompt, one row.
        sigmas: [T + 1] schedule.
        levels: steps whose noise levels are trained.
        config: of the run.
        group: (iteration, index).
        samples: indices of the n samples in the group.
    """
    rows = {
        name: value.expand(len(x_0), *value.shape[1:]).contiguous()
        for name, value in policy.without_padding(condition).items()
    }
    found = {}
    for level in levels:
        sigma = sigmas[level].to(x_0.device).expand(len(x_0))
        noise = noise_of(
            policy.latent_shape,
            seed=config.seed,
            purpose=FORWARD_NOISE,
            group=group,
            samples=samples,
            step=level + 1,
            shared=config.algorithm.shares_noise,
        ).to(x_0.device, x_0.dtype)
        x = noised(x_0, noise, sigma)
        own = matching_loss(policy.velocity(x, sigma, rows), noise, x_0)
        with reference_weights(policy):
            base = matching_loss(policy.velocity(x, sigma, rows), noise, x_0)
        found[level] = own - base
    return found
