"""What is asked of finished samples at the noise levels that are trained, by those who have them.

Margins: by how much matching losses are above the base model's. Velocities of the reference policy:
what training compares with, where it does not ask itself.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from digen_core.config.run import RunConfig
from digen_core.maths.dgpo import matching_loss
from digen_core.maths.forward_process import noised
from digen_core.models.policy import Condition, Policy
from digen_core.rollout.nonfinite import nonfinite_rows, with_zeros
from digen_core.rollout.references import ReferenceUse
from digen_core.rollout.rows import Rows
from digen_core.rollout.sampler import DenoisedStep
from digen_core.rollout.steps import steps_of_iteration
from digen_core.seeding import FORWARD_NOISE


@dataclass(frozen=True, slots=True)
class Answers:
    """Of n samples, by trained noise level; empty: it was not asked for."""

    margins: dict[int, Tensor] = field(default_factory=dict)  # [n]
    references: dict[int, Tensor] = field(default_factory=dict)  # velocities [n, ...]


def is_asked(config: RunConfig) -> bool:
    """Whether anything is asked of finished samples."""
    return config.algorithm.needs_margins or (config.trains_clean and config.generates_reference)


def with_answers(
    last: DenoisedStep,
    policy: Policy,
    condition: Condition,
    sigmas: Tensor,
    *,
    config: RunConfig,
    rows: Rows,
) -> DenoisedStep:
    """Return the last step of some trajectories with the answers for what they ended with.

    One that is NaN or infinite becomes 0, and is named. The other arguments are those of `answers`.
    """
    iteration, _ = rows.parts[0].group
    levels = steps_of_iteration(config, iteration, len(sigmas) - 1).trained
    found = answers(
        policy,
        last.x_next,
        condition,
        sigmas,
        levels=levels,
        config=config,
        rows=rows,
    )
    at = "at the noise level of step"
    named = {f"margin {at} {level}": value for level, value in found.margins.items()}
    named |= {f"reference velocity {at} {n}": value for n, value in found.references.items()}
    margins, references = found.margins, found.references
    if bad := nonfinite_rows(named):
        margins = {level: with_zeros(value, bad) for level, value in margins.items()}
        references = {level: with_zeros(value, bad) for level, value in references.items()}
    return replace(
        last, margins=margins, references=references, nonfinite={**bad, **last.nonfinite}
    )


@torch.no_grad()
def answers(
    policy: Policy,
    x_0: Tensor,
    condition: Condition,
    sigmas: Tensor,
    *,
    levels: Sequence[int],
    config: RunConfig,
    rows: Rows,
) -> Answers:
    """Return what is asked of some samples at noise levels.

    Args:
        policy: the version that is asked, with the guidance of training; its base model is the
            reference.
        x_0: [n, ...] clean latents.
        condition: embeddings of their prompts, [n, ...] each.
        sigmas: [T + 1] schedule.
        levels: steps whose noise levels are trained.
        config: of the run.
        rows: which samples they are.
    """
    policy = policy.in_training()
    condition = policy.without_padding(condition)
    found, everyone = Answers(), dict.fromkeys(levels, range(len(x_0)))
    use = ReferenceUse.of(config, rows, len(sigmas) - 1) or ReferenceUse(everyone)
    if config.algorithm.needs_margins:
        use = replace(use, rows=everyone)
    for level in levels:
        sigma = sigmas[level].to(x_0.device).expand(len(x_0))
        noise = rows.noise(
            policy.latent_shape,
            seed=config.seed,
            purpose=FORWARD_NOISE,
            step=level + 1,
            shared=config.algorithm.shares_noise,
        ).to(x_0.device, x_0.dtype)
        x = noised(x_0, noise, sigma)
        base = use.velocity(policy, level, x, sigma, condition)
        if use.kept:
            found.references[level] = base
        if config.algorithm.needs_margins:
            own = matching_loss(policy.velocity(x, sigma, condition), noise, x_0)
            found.margins[level] = own - matching_loss(base, noise, x_0)
    return found
