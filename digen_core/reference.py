"""The reference: a whole run as a plain serial loop in one process. Every schedule must equal it.

For each iteration: sample G images for each of N prompts step by step, score them, centre the
scores within each group, replay every trained transition with gradients, and step the optimizer
once. No batching tricks, no workers; state lives in torch's own optimizer. Told which versions a
stale schedule generated with, it generates with those.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from digen_core.algorithms.ddpo import RewardHistory
from digen_core.algorithms.diffusion_nft import nft_loss, noised, optimality
from digen_core.algorithms.flow_sde import LOGPROBS, TRANSITIONS, Transition
from digen_core.config import RunConfig
from digen_core.data import Prompt, prompts_of_iteration
from digen_core.models.policy import Policy
from digen_core.models.trainable import (
    initial_weights,
    reference_weights,
    set_weights,
    trainable_parameters,
)
from digen_core.rewards.failures import component_means, settle
from digen_core.rewards.scoring import RewardFn, score_images
from digen_core.rollout.sampler import initial_latent, rounded
from digen_core.rollout.steps import steps_of_iteration
from digen_core.seeding import FORWARD_NOISE, NOISE, noise_of
from digen_core.training.advantages import advantages_of
from digen_core.training.objectives import Replay, corrected, kl_penalty
from digen_core.training.optimizer import (
    adamw,
    learning_rate_of,
    mixed,
    moving_average,
    old_decay_of,
)
from digen_core.transport.arrays import Weights


@dataclass
class SerialRun:
    """What the loop leaves behind."""

    weights: Weights
    ema: Weights
    metrics: list[dict[str, float]] = field(default_factory=list)  # one row per iteration


def post_train_serially(
    config: RunConfig,
    policy: Policy,
    prompts: Sequence[Prompt],
    rewards: Mapping[str, RewardFn],
    *,
    on_iteration: Callable[[int, dict[str, float]], None] = lambda index, row: None,
    version_of: Callable[[int, int], int] | None = None,
) -> SerialRun:
    """Train ``policy`` (with its trainable parameters chosen) for ``config.num_iterations``.

    Args:
        config: of the run.
        policy: left with the last weights.
        prompts: to train on.
        rewards: by name.
        on_iteration: is told each iteration and its row of metrics.
        version_of: (iteration, group) -> the policy version that generates the group, version n
            being the weights after n updates; None: the newest.
    """
    set_weights(policy, initial_weights(policy, config.train.lora, seed=config.seed))
    parameters = trainable_parameters(policy)
    rate = config.train.learning_rate
    optimizer = adamw(list(parameters.values()), config.train, learning_rate=rate)
    average = moving_average(parameters.values(), config.train)
    metrics, updates = [], 0
    history: RewardHistory = {}
    versions = [_weights_of(parameters)]
    generators = versions[:]  # what samples: the versions, or an old policy that lags behind them
    for iteration in range(config.num_iterations):
        generated_by = [
            generators[updates if version_of is None else version_of(iteration, group)]
            for group in range(config.rollout.prompts_per_iteration)
        ]
        groups, row, history = _rollout(
            config, policy, prompts, rewards, iteration, generated_by, history
        )
        if config.keeps_old:
            set_weights(policy, generators[updates])
            _add_old_velocities(config, policy, groups, iteration)
        set_weights(policy, versions[updates])
        rate = learning_rate_of(config.train, updates, config.num_iterations)
        norm = _train(config, policy, optimizer, groups, iteration, rate)
        if norm is not None:
            updates += 1
            versions.append(_weights_of(parameters))
            old, decay = generators[-1], old_decay_of(config, updates)
            generators.append(mixed(old, versions[-1], decay) if decay else versions[-1])
            if updates % config.train.ema_every == 0:
                average.step(parameters.values())
        row["train/grad_norm"] = norm or 0.0
        metrics.append(row)
        on_iteration(iteration, row)
    weights = versions[updates]
    shadows = zip(parameters, average.shadow_params, strict=True)
    ema = {name: shadow.cpu().numpy() for name, shadow in shadows}
    return SerialRun(weights, ema if config.train.ema_decay else weights, metrics)


def _weights_of(parameters: Mapping[str, torch.nn.Parameter]) -> Weights:
    """Return a copy of the weights as they are now."""
    return {name: p.detach().cpu().numpy().copy() for name, p in parameters.items()}


@dataclass
class _Group:
    """G trajectories of one prompt."""

    condition: dict[str, torch.Tensor]
    latents: list[torch.Tensor]  # T + 1 of [G, ...]
    means: dict[int, torch.Tensor]  # noisy step -> [G, ...] where it would go without its noise
    logprobs: dict[int, torch.Tensor]  # noisy step -> [G]
    noise: Callable[[int, int], torch.Tensor]  # (purpose, step) -> [G, ...]
    sigmas: torch.Tensor  # [T + 1]
    advantages: torch.Tensor | None = None  # [G]; None: the group is skipped
    chosen: list[int] | None = None  # samples to train; None: all
    old_velocities: dict[int, torch.Tensor] = field(default_factory=dict)  # step -> [G, ...]


@torch.no_grad()
def _rollout(
    config: RunConfig,
    policy: Policy,
    prompts: Sequence[Prompt],
    rewards: Mapping[str, RewardFn],
    iteration: int,
    generated_by: list[Weights],
    history: RewardHistory,
) -> tuple[list[_Group], dict[str, float], RewardHistory]:
    """Sample each group of one iteration with its weights, score it, and give it advantages."""
    groups, columns = [], {}
    count, size = config.rollout.prompts_per_iteration, config.rollout.group_size
    drawn = prompts_of_iteration(prompts, iteration, count, seed=config.seed)
    texts = [prompt.text for prompt in drawn]
    for index, text in enumerate(texts):
        set_weights(policy, generated_by[index])
        group = _sample(config, policy, text, (iteration, index))
        images = policy.decode(group.latents[-1])
        metadata = [drawn[index].metadata] * size
        scored = score_images(rewards, config.rewards, images, [text] * size, metadata)
        columns[index] = settle(scored, config.reward_weights)
        groups.append(group)
    found = advantages_of(config, columns, dict(enumerate(texts)), history)
    for index, group in enumerate(groups):
        if index not in found.skipped:
            values = torch.from_numpy(found.values[index])
            group.advantages = values.to(policy.device, policy.latent_dtype)
            group.chosen = list(found.chosen[index]) if found.chosen else None
    scored = {
        name: np.concatenate([column[name] for column in columns.values()]) for name in columns[0]
    }
    means = {f"reward/{name}": mean for name, mean in component_means(scored).items()}
    row = {"reward/mean": means.pop("reward/reward"), **means}
    return groups, {**row, "groups/zero_variance": float(len(found.skipped))}, found.history


def _sample(config: RunConfig, policy: Policy, text: str, group: tuple[int, int]) -> _Group:
    """Denoise the samples of one group: some steps are noisy, the others plain Euler steps."""
    rollout, samples = config.rollout, range(config.rollout.group_size)
    sigmas = policy.sigmas(rollout.num_steps).to(policy.device)
    condition = {
        name: value.expand(len(samples), *value.shape[1:])
        for name, value in policy.encode([text]).items()
    }

    def noise(purpose: int, step: int) -> torch.Tensor:
        drawn = noise_of(
            policy.latent_shape,
            seed=config.seed,
            purpose=purpose,
            group=group,
            samples=samples,
            step=step,
        )
        return drawn.to(policy.device, policy.latent_dtype)

    x = initial_latent(policy, seed=config.seed, group=group, samples=samples, config=rollout)
    latents, means, logprobs = [x], {}, {}
    noisy_steps = steps_of_iteration(config, group[0]).noisy
    for step in range(rollout.num_steps):
        here, there = (sigmas[i].expand(len(x)) for i in (step, step + 1))
        mean, std = TRANSITIONS[rollout.transition](
            x,
            policy.velocity(x, here, condition),
            here,
            there,
            noise_level=rollout.noise_level if step in noisy_steps else 0.0,
            sigma_max=float(sigmas[1]),
        )
        x = mean
        if step in noisy_steps:
            x, means[step] = mean + std * noise(NOISE, step + 1), mean
        x = rounded(x, rollout.storage)
        if step in noisy_steps:
            logprobs[step] = LOGPROBS[rollout.transition](x, Transition(mean, std))
        latents.append(x)
    return _Group(condition, latents, means, logprobs, noise, sigmas)


def _train(
    config: RunConfig,
    policy: Policy,
    optimizer: torch.optim.Optimizer,
    groups: list[_Group],
    iteration: int,
    learning_rate: float,
) -> float | None:
    """Add up the gradient of every pair of the iteration, and step once. Returns its norm."""
    optimizer.zero_grad()
    informative = [group for group in groups if group.advantages is not None]
    for group in informative:
        for step in steps_of_iteration(config, iteration).trained:
            lose = _forward_losses if config.trains_clean else _replay_losses
            losses = lose(config, policy, group, step)
            chosen = losses if group.chosen is None else losses[group.chosen]
            (chosen.sum() / config.num_pairs).backward()  # type: ignore[no-untyped-call]
    if not informative:
        return None
    (options,) = optimizer.param_groups
    options["lr"], parameters = learning_rate, options["params"]
    norm = torch.nn.utils.clip_grad_norm_(parameters, config.train.max_grad_norm)
    optimizer.step()
    return float(norm)


def _replay_losses(config: RunConfig, policy: Policy, group: _Group, step: int) -> torch.Tensor:
    """Return the objective and the KL divergence of each sample at one step, [G]."""
    algorithm, x = config.algorithm, group.latents[step]
    here, there = (group.sigmas[i].expand(len(x)) for i in (step, step + 1))
    kernel, sigma_max = TRANSITIONS[config.rollout.transition], float(group.sigmas[1])
    settings = {"noise_level": config.rollout.noise_level, "sigma_max": sigma_max}
    assert group.advantages is not None
    assert algorithm.type != "diffusion_nft"
    reference = None
    if algorithm.kl_coefficient:
        with reference_weights(policy):
            velocity = policy.velocity(x, here, group.condition)
            reference = kernel(x, velocity, here, there, **settings)
    new = kernel(x, policy.velocity(x, here, group.condition), here, there, **settings)
    replay = Replay(
        new,
        LOGPROBS[config.rollout.transition](group.latents[step + 1], new),
        group.means[step],
        group.logprobs[step],
        group.advantages.clamp(-algorithm.max_advantage, algorithm.max_advantage),
        here,
        there,
        sigma_max,
    )
    losses = corrected(replay, algorithm).per_pair
    if reference is not None:
        losses = losses + algorithm.kl_coefficient * kl_penalty(replay, reference, algorithm)
    return losses


@torch.no_grad()
def _add_old_velocities(
    config: RunConfig, policy: Policy, groups: list[_Group], iteration: int
) -> None:
    """Ask the old policy, whose weights the policy has, for its velocities."""
    for group in groups:
        for step in steps_of_iteration(config, iteration).trained:
            x, sigma = _noised(group, step)
            group.old_velocities[step] = policy.velocity(x, sigma, group.condition)


def _noised(group: _Group, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the clean latents [G, ...] at a step's noise level, and that level [G]."""
    sigma = group.sigmas[step].expand(len(group.latents[-1]))
    return noised(group.latents[-1], group.noise(FORWARD_NOISE, step + 1), sigma), sigma


def _forward_losses(config: RunConfig, policy: Policy, group: _Group, step: int) -> torch.Tensor:
    """Return DiffusionNFT's loss of each sample at one noise level, [G]."""
    algorithm, x_0 = config.algorithm, group.latents[-1]
    assert group.advantages is not None
    assert algorithm.type == "diffusion_nft"
    x, sigma = _noised(group, step)
    reference = None
    if algorithm.kl_coefficient:
        with reference_weights(policy):
            reference = policy.velocity(x, sigma, group.condition)
    velocity = policy.velocity(x, sigma, group.condition)
    return nft_loss(
        velocity,
        group.old_velocities.get(step, velocity.detach()),
        reference,
        x,
        x_0,
        sigma,
        optimality(
            group.advantages, max_advantage=algorithm.max_advantage, mode=algorithm.advantage_mode
        ),
        beta=algorithm.beta,
        max_advantage=algorithm.max_advantage,
        reference_coefficient=algorithm.kl_coefficient,
    ).per_pair
