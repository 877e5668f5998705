"""The groups of the serial reference: how one is sampled, and what each of its pairs loses."""

from collections.abc import Callable, Collection, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import torch

from digen_core.algorithms.forward_process import ForwardProcess
from digen_core.algorithms.policy_gradient import PolicyGradient
from digen_core.config.rollout import RolloutConfig
from digen_core.config.run import RunConfig
from digen_core.control.schedule import Deal
from digen_core.data.prompts import Prompt
from digen_core.maths.dpm_solver import predicted_clean
from digen_core.maths.flow_sde import LOGPROBS, TRANSITIONS, Transition
from digen_core.maths.forward_process import noised
from digen_core.maths.kl import scaled_kl
from digen_core.maths.replay import Noised, Replay
from digen_core.models.policy import Policy
from digen_core.models.trainable import reference_weights
from digen_core.rollout.conditions import encoded
from digen_core.rollout.sampler import initial_latent, rounded, schedule_of, solved, solves
from digen_core.rollout.steps import num_steps_taken, own_steps_of_group, steps_of_group
from digen_core.seeding import FORWARD_NOISE, NOISE, noise_of
from digen_core.transport.origin import Origin


@dataclass
class Group:
    """G trajectories of one prompt."""

    policy: Policy  # for the size of its samples, with the guidance of training
    condition: dict[str, torch.Tensor]
    latents: list[torch.Tensor]  # T + 1 of [G, ...]
    means: dict[int, torch.Tensor]  # noisy step -> [G, ...] where it would go without its noise
    logprobs: dict[int, torch.Tensor]  # noisy step -> [G]
    noise: Callable[[int, int], torch.Tensor]  # (purpose, step) -> [G, ...]
    sigmas: torch.Tensor  # [T + 1]
    trained: tuple[int, ...]  # steps
    own_steps: tuple[tuple[int, ...], ...]  # of those, of each sample and epoch; empty: all
    advantages: torch.Tensor | None = None  # [G] or [G, K]; None: the group is skipped
    chosen: list[int] | None = None  # samples to train; None: all
    start_velocities: dict[int, torch.Tensor] = field(default_factory=dict)  # step -> [G, ...]


def sample_group(
    config: RunConfig,
    policy: Policy,
    prompt: Prompt,
    group: tuple[int, int],
    origin: Origin | None = None,
) -> Group:
    """Denoise the samples of one group: some steps are noisy, the others plain Euler steps.

    Those that come with the prompt are encoded: their trajectories stand still.

    Args:
        config: of the run.
        policy: that generates.
        prompt: of the group.
        group: (iteration, index).
        origin: whose noise its samples have; None: their own.
    """
    rollout, samples = config.rollout, range(config.rollout.group_size)
    origin = origin or Origin(group, samples)
    policy = policy.at_size(config.size_of(*group))
    num_steps = num_steps_taken(config, group[0], prompt.num_steps)
    sigmas = schedule_of(policy, config, group[0], num_steps).to(policy.device)
    condition = _condition(policy, prompt, len(samples))

    def noise(purpose: int, step: int) -> torch.Tensor:
        own = origin if purpose == NOISE else Origin(group, samples)
        return _noise(config, policy, own, purpose, step)

    noisy_steps, trained_steps = steps_of_group(config, *group, num_steps)
    own_steps = own_steps_of_group(config, *group, num_steps)
    if prompt.samples:
        x = rounded(policy.encode_samples(prompt.samples), rollout.storage)
        clean = [x] * (num_steps + 1)
        return Group(
            policy.in_training(), condition, clean, {}, {}, noise, sigmas, trained_steps, own_steps
        )
    sampled = _trajectories(config, rollout, policy, condition, sigmas, noisy_steps, origin)
    return Group(policy.in_training(), condition, *sampled, noise, sigmas, trained_steps, own_steps)


def sample_candidates(
    config: RunConfig, policy: Policy, prompt: Prompt, group: tuple[int, int]
) -> list[torch.Tensor]:
    """Return the latents [C, ...] of a group's candidates, before each step and after the last.

    Args:
        config: of the run.
        policy: that generates.
        prompt: of the group.
        group: (iteration, index) of that of the candidates.
    """
    rollout, screening = config.rollout, config.rollout.screening
    assert screening is not None
    policy = policy.at_size(config.size_of(*group))
    num_steps = num_steps_taken(config, group[0], prompt.num_steps)
    noisy_steps: tuple[int, ...] = ()
    if screening.num_steps is not None:
        sigmas = policy.sigmas(min(screening.num_steps, num_steps))
    else:  # the steps of its sample
        sigmas = schedule_of(policy, config, group[0], num_steps)
        successor = group[1] + rollout.prompts_per_iteration
        noisy_steps = steps_of_group(config, group[0], successor, num_steps).noisy
    condition = _condition(policy, prompt, screening.candidates)
    origin, how = Origin(group, range(screening.candidates)), rollout.of_candidates
    sigmas = sigmas.to(policy.device)
    return _trajectories(config, how, policy, condition, sigmas, noisy_steps, origin)[0]


def _condition(policy: Policy, prompt: Prompt, count: int) -> dict[str, torch.Tensor]:
    """Return a prompt's condition, for so many samples."""
    return {
        name: value.expand(count, *value.shape[1:])
        for name, value in encoded(policy, [prompt]).items()
    }


def _noise(
    config: RunConfig, policy: Policy, origin: Origin, purpose: int, step: int
) -> torch.Tensor:
    """Return the noise [n, ...] of samples for a purpose at a step."""
    drawn = noise_of(
        policy.latent_shape,
        seed=config.seed,
        purpose=purpose,
        group=origin.group,
        samples=origin.samples,
        step=step,
        shared=purpose == FORWARD_NOISE and config.algorithm.shares_noise,
    )
    return drawn.to(policy.device, policy.latent_dtype)


Sampled = tuple[list[torch.Tensor], dict[int, torch.Tensor], dict[int, torch.Tensor]]
"""Latents [n, ...] before each step and after the last; means and log-probs of noisy steps."""


def _trajectories(
    config: RunConfig,
    rollout: RolloutConfig,
    policy: Policy,
    condition: dict[str, torch.Tensor],
    sigmas: torch.Tensor,
    noisy_steps: Collection[int],
    origin: Origin,
) -> Sampled:
    """Denoise samples from their noise on.

    Args:
        config: of the run.
        rollout: how they are sampled.
        policy: for their size.
        condition: of each.
        sigmas: [T + 1] noise levels.
        noisy_steps: with noise; the others are Euler steps, or of the solver.
        origin: whose noise they have.
    """
    x = initial_latent(
        policy, seed=config.seed, group=origin.group, samples=origin.samples, config=rollout
    )
    latents, means, logprobs = [x], {}, {}
    predicted: torch.Tensor | None = None
    for step in range(len(sigmas) - 1):
        here, there = (sigmas[i].expand(len(x)) for i in (step, step + 1))
        with policy.sampling(rollout.precision):
            velocity = policy.velocity(x, here, condition)
        before, predicted = predicted, predicted_clean(x, velocity, here)
        mean, std = TRANSITIONS[rollout.transition](
            x,
            velocity,
            here,
            there,
            noise_level=rollout.noise_level if step in noisy_steps else 0.0,
            sigma_max=float(sigmas[1]),
        )
        x = mean
        if step in noisy_steps:
            moved = std * _noise(config, policy, origin, NOISE, step + 1)
            x, means[step] = mean + moved, mean
        elif solves(rollout, step, noisy_steps):
            x = solved(mean, predicted, before, sigmas, step)
        x = rounded(x, rollout.storage)
        if step in noisy_steps:
            logprobs[step] = LOGPROBS[rollout.transition](x, Transition(mean, std))
        latents.append(x)
    return latents, means, logprobs


def step_kl(config: RunConfig, group: Group) -> np.ndarray:
    """Return how far transitions at sampled latents are from the base model's, [G, K].

    They are the policy's in its own precision: of those that were sampled with the same numbers.
    """
    assert config.algorithm.reward_kl is not None
    _, scaling = config.algorithm.reward_kl
    columns = []
    for step in group.trained:
        mean = group.means[step]
        if config.rollout.precision != "model":
            mean = _transition(config, group, step).mean
        with reference_weights(group.policy) as reference:
            base = _transition(config, replace(group, policy=reference), step)
        size = group.sigmas[step] - group.sigmas[step + 1]
        columns.append(scaled_kl(mean, base.mean, base.std, size, scaling=scaling))
    found: np.ndarray = torch.stack(columns, dim=1).cpu().numpy()
    return found


def step_margins(config: RunConfig, group: Group) -> np.ndarray:
    """Return by how much matching losses at trained levels are above the base model's, [G, K]."""
    columns = []
    for step in group.trained:
        x, noise, sigma = _noised(group, step)
        target = noise - group.latents[-1]
        losses = []
        for weights in (nullcontext(group.policy), reference_weights(group.policy)):
            with weights as policy:
                velocity = policy.velocity(x, sigma, group.condition)
            losses.append(((velocity - target) ** 2).flatten(1).mean(1))
        columns.append(losses[0] - losses[1])
    found: np.ndarray = torch.stack(columns, dim=1).cpu().numpy()
    return found


def _transition(
    config: RunConfig, group: Group, step: int, velocity: torch.Tensor | None = None
) -> Transition:
    """Return where a velocity, or the policy's, leads from the latents [G, ...] before a step."""
    x = group.latents[step]
    here, there = (group.sigmas[i].expand(len(x)) for i in (step, step + 1))
    return TRANSITIONS[config.rollout.transition](
        x,
        group.policy.velocity(x, here, group.condition) if velocity is None else velocity,
        here,
        there,
        noise_level=config.rollout.noise_level,
        sigma_max=float(group.sigmas[1]),
    )


def _advantages_at(group: Group, step: int) -> torch.Tensor:
    """Return the advantages of a group's samples at a trained step, [G]."""
    assert group.advantages is not None
    found = group.advantages
    return found if found.ndim == 1 else found[:, group.trained.index(step)]


def replay_losses(config: RunConfig, group: Group, step: int) -> torch.Tensor:
    """Return the objective and the KL divergence of each sample at one step, [G]."""
    algorithm, x = config.algorithm, group.latents[step]
    assert isinstance(algorithm, PolicyGradient)
    reference, advantages = None, _advantages_at(group, step)
    if algorithm.kl_coefficient:
        with reference_weights(group.policy) as base:
            reference = _transition(config, replace(group, policy=base), step)
    new, proximal = _transition(config, group, step), None
    if step in group.start_velocities:
        proximal = _transition(config, group, step, group.start_velocities[step])
    logprob_of = partial(LOGPROBS[config.rollout.transition], group.latents[step + 1])
    replay = Replay(
        new,
        logprob_of(new),
        group.means[step],
        group.logprobs[step],
        advantages,
        group.sigmas[step].expand(len(x)),
        group.sigmas[step + 1].expand(len(x)),
        float(group.sigmas[1]),
        None if proximal is None else proximal.mean,
        None if proximal is None else logprob_of(proximal),
    )
    losses = algorithm.losses(replay).per_pair
    if reference is not None:
        losses = losses + algorithm.kl_coefficient * algorithm.divergence(replay, reference)
    return losses


def dealt(groups: Mapping[int, Group], deal: Deal, update: int) -> list[tuple[Group, list[int]]]:
    """Return the groups that an update trains, each with its samples that are."""
    found = []
    for index, group in groups.items():
        if group.advantages is None:  # nobody has chosen among its samples
            continue
        chosen = range(len(group.latents[0])) if group.chosen is None else sorted(group.chosen)
        own = [s for place, s in enumerate(chosen) if update in deal.updates_of(index, place)]
        if own:
            found.append((group, own))
    return found


@torch.no_grad()
def add_start_velocities(config: RunConfig, groups: list[Group]) -> None:
    """Ask what generates when an iteration begins, whose weights the policy has, for velocities."""
    for group in groups:
        for step in group.trained:
            x, sigma = group.latents[step], group.sigmas[step].expand(len(group.latents[step]))
            if config.trains_clean:
                x, _, sigma = _noised(group, step)
            group.start_velocities[step] = group.policy.velocity(x, sigma, group.condition)


def _noised(group: Group, step: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the clean latents [G, ...] at a step's noise level, that noise, and the level [G]."""
    sigma, noise = (
        group.sigmas[step].expand(len(group.latents[-1])),
        group.noise(FORWARD_NOISE, step + 1),
    )
    return noised(group.latents[-1], noise, sigma), noise, sigma


def forward_losses(config: RunConfig, group: Group, step: int) -> torch.Tensor:
    """Return the loss of each sample at one noise level, [G]."""
    algorithm, x_0 = config.algorithm, group.latents[-1]
    assert isinstance(algorithm, ForwardProcess)
    x, noise, sigma = _noised(group, step)
    reference = None
    if algorithm.kl_coefficient:
        with reference_weights(group.policy) as base:
            reference = base.velocity(x, sigma, group.condition)
    velocity = group.policy.velocity(x, sigma, group.condition)
    start = group.start_velocities.get(step, velocity.detach())
    advantages = _advantages_at(group, step)
    pairs = Noised(velocity, start, reference, x, noise, x_0, sigma, advantages)
    return algorithm.losses(pairs).per_pair
