"""Denoise samples and record what the trainer needs to replay each step.

Axes: n samples of the batch; a latent is [n, ...] of any rank.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from torch import Tensor

from digen_core.config.rollout import RolloutConfig
from digen_core.config.run import RunConfig
from digen_core.maths.dpm_solver import predicted_clean, second_order_step
from digen_core.maths.flow_sde import LOGPROBS, TRANSITIONS
from digen_core.maths.kl import scaled_kl
from digen_core.models.policy import Condition, Policy
from digen_core.models.schedules import with_tail
from digen_core.rollout.nonfinite import Finite
from digen_core.rollout.references import ReferenceUse
from digen_core.rollout.rows import Rows
from digen_core.rollout.steps import steps_of_iteration
from digen_core.seeding import NOISE, noise_of
from digen_core.transport.arrays import Precision

DEFAULT = RolloutConfig()


@dataclass(frozen=True, slots=True)
class DenoisedStep:
    """One transition as it was sampled."""

    step: int
    x: Tensor  # [n, ...] before the step
    x_next: Tensor  # [n, ...] after it
    logprob: Tensor | None  # [n] mean log-prob under the sampling policy; None if noiseless
    kl: Tensor | None = None  # [n] divergence from the reference policy, where it was asked for
    nonfinite: Mapping[int, str] = field(default_factory=dict)
    """Rows with 0 in place of what is NaN or infinite, and what."""

    clean: Tensor | None = None
    """[n, ...] predicted before the step, of which a solver of second order makes the next one."""

    margins: Mapping[int, Tensor] = field(default_factory=dict)
    """Of the last step, where they are asked for: trained step -> [n], see `finished.answers`."""

    references: Mapping[int, Tensor] = field(default_factory=dict)
    """Of a trained step, or all of the last one: trained step -> velocities [n, ...] of the
    reference policy, where training is to have them."""


def schedule_of(policy: Policy, config: RunConfig, iteration: int, num_steps: int) -> Tensor:
    """Return the noise levels, float32 [num_steps + 1], of an iteration's trajectories.

    Args:
        policy: of their size.
        config: of the run.
        iteration: from 0.
        num_steps: that they take.
    """
    if not config.algorithm.shortens:
        return policy.sigmas(num_steps)
    first = max(steps_of_iteration(config, iteration).noisy) + 1
    return with_tail(policy.sigmas(config.rollout.num_steps), first, num_steps - first)


def initial_latent(
    policy: Policy,
    *,
    seed: int,
    group: tuple[int, int],
    samples: Sequence[int],
    purpose: int = NOISE,
    config: RolloutConfig = DEFAULT,
) -> Tensor:
    """Return the noise [n, ...] that the samples of a group start from.

    Args:
        policy: whose latents.
        seed: of the run.
        group: (iteration, index).
        samples: indices of the n samples in the group.
        purpose: NOISE or EVALUATION_NOISE.
        config: who shares a noise, and the precision that trajectories are kept in.
    """
    shared = config.initial_noise
    owner = (group[0], 0) if shared == "iteration" else group
    branches = config.branches
    noise = noise_of(
        policy.latent_shape,
        seed=seed,
        purpose=purpose,
        group=owner,
        samples=[sample - sample % branches for sample in samples],
        step=0,
        shared=shared != "sample",
    )
    return rounded(noise.to(policy.device, policy.latent_dtype), config.storage)


def rounded(x: Tensor, precision: Precision) -> Tensor:
    """Round a latent to the precision that it is kept in, before anything is computed from it.

    So a replay sees the numbers that the rollout saw, and log-ratios stay 0.
    """
    return x if precision == "float32" else x.to(getattr(torch, precision)).to(x.dtype)


@torch.no_grad()
def denoise(
    policy: Policy,
    x: Tensor,
    condition: Condition,
    sigmas: Tensor,
    *,
    steps: range,
    noisy_steps: Collection[int],
    config: RolloutConfig,
    seed: int,
    rows: Rows,
    clean: Tensor | None = None,
    reference: ReferenceUse | None = None,
    zeroed: bool = False,
) -> Iterator[DenoisedStep]:
    """Run some denoising steps of some samples, yielding each once the next one is launched.

    Nothing of a step is read before: a device that is waited for between two steps waits in turn
    for what is launched then.

    Args:
        policy: the version that generates the whole trajectory.
        x: [n, ...] latent before ``steps[0]``.
        condition: embeddings of their prompts, [n, ...] each.
        sigmas: [T+1] schedule.
        steps: to run now.
        noisy_steps: steps with noise; the others are steps of the ODE.
        config: transition, noise level, and the solver of the ODE.
        seed: of the run.
        rows: which samples they are, and whose noise they have.
        clean: [n, ...] of the step before ``steps[0]``, where that is not the first.
        reference: what is asked of the reference policy, the base model of ``policy``.
        zeroed: name what becomes NaN or infinite, put 0 in its place, and go on.

    Raises:
        FloatingPointError: a latent, log-prob or divergence is NaN or infinite; not if ``zeroed``.
    """
    condition, levels = policy.without_padding(condition), sigmas.cpu()
    sigmas, waiting = sigmas.to(x.device), None
    for step in steps:
        noise_level = config.noise_level if step in noisy_steps else 0.0
        sigma = sigmas[step].expand(len(x))
        lead = partial(
            TRANSITIONS[config.transition],
            x,
            sigma=float(levels[step]),
            sigma_next=float(levels[step + 1]),
            noise_level=noise_level,
            sigma_max=float(levels[1]),
        )
        with policy.sampling(config.precision):
            velocity = policy.velocity(x, sigma, condition)
        # drawn while a GPU computes velocities
        noise = _noise(rows, seed, step, x) if noise_level else None
        transition = lead(velocity=velocity)
        predicted = None if config.solver == "euler" else predicted_clean(x, velocity, sigma)
        kl = base = None
        if reference is not None and step in reference.rows:
            base = reference.velocity(policy, step, x, sigma, condition)
            if reference.scaling is not None:
                is_exact, size = config.precision == "model", sigmas[step] - sigmas[step + 1]
                again = partial(policy.velocity, x, sigma, condition)
                exact = transition if is_exact else lead(velocity=again())
                means = exact.mean, lead(velocity=base).mean
                kl = scaled_kl(*means, transition.std, size, scaling=reference.scaling)
        x_next = transition.mean
        if noise is not None:
            x_next = x_next + transition.std * noise
        elif predicted is not None and solves(config, step, noisy_steps):
            x_next = solved(x_next, predicted, clean, levels, step)
        x_next = rounded(x_next, config.storage)
        logprob = LOGPROBS[config.transition](x_next, transition) if noise_level else None
        finite = Finite.of(
            {"latent": x_next, "log-prob": logprob, "KL": kl, "reference velocity": base}
        )
        x_next = finite.zeroed(x_next)
        logprob, kl, base, predicted = (
            None if own is None else finite.zeroed(own) for own in (logprob, kl, base, predicted)
        )
        keeps = reference is not None and reference.kept
        kept = {step: base} if keeps and base is not None else {}
        if waiting is not None:
            yield _named(*waiting, rows, levels, zeroed=zeroed)
        waiting = DenoisedStep(step, x, x_next, logprob, kl, {}, predicted, references=kept), finite
        x, clean = x_next, predicted
    if waiting is not None:
        yield _named(*waiting, rows, levels, zeroed=zeroed)


def _noise(rows: Rows, seed: int, step: int, x: Tensor) -> Tensor:
    """Draw the noise [n, ...] that a step adds to latents.

    A GPU copies it when it has computed what was launched before; the host does not wait for that.
    """
    drawn = rows.noise(x.shape[1:], seed=seed, purpose=NOISE, step=step + 1).to(x.dtype)
    if x.device.type == "cuda":
        return drawn.pin_memory().to(x.device, non_blocking=True)
    return drawn.to(x.device)


def _named(
    done: DenoisedStep, finite: Finite, rows: Rows, levels: Tensor, *, zeroed: bool
) -> DenoisedStep:
    """Return a step with what became NaN or infinite in it, which is 0 in it; it waits for it.

    Raises:
        FloatingPointError: something did; not if ``zeroed``.
    """
    place = f"step {done.step} (sigma {float(levels[done.step]):.4f})"
    found = {row: f"{what} at {place}" for row, what in finite.nonfinite().items()}
    if found and not zeroed:
        raise FloatingPointError(nonfinite_text(*next(iter(rows.named(found).items()))))
    return replace(done, nonfinite=found)


def nonfinite_text(group: tuple[int, int], found: Mapping[int, str]) -> str:
    """Return the line that says what of a group's samples is NaN or infinite.

    Args:
        group: (iteration, index).
        found: what, by sample.
    """
    (sample, what), *others = sorted(found.items())
    more = f" (and of {len(others)} more)" if others else ""
    return (
        f"iteration {group[0] + 1}, group {group[1]}: the {what} of sample {sample}{more} is NaN "
        "or infinite; check dtype and weights"
    )


def solves(config: RolloutConfig, step: int, noisy_steps: Collection[int]) -> bool:
    """Say whether a step is of second order: one after the last noisy one, and not the first."""
    return config.solver != "euler" and step > max(noisy_steps, default=0)


def solved(x: Tensor, clean: Tensor, before: Tensor | None, sigmas: Tensor, step: int) -> Tensor:
    """Return the latents [n, ...] after a step of second order.

    Args:
        x: [n, ...] after the Euler step.
        clean: [n, ...] predicted before it.
        before: [n, ...] predicted before the step before it.
        sigmas: [T+1] schedule.
        step: which one.

    Raises:
        ValueError: nothing is known of the step before.
    """
    if before is None:
        raise ValueError(
            f"step {step} goes on from what step {step - 1} predicted; nothing is kept"
        )
    levels = dict(zip(("sigma_before", "sigma", "sigma_next"), sigmas[step - 1 :], strict=False))
    return second_order_step(x, clean, before, **levels)
