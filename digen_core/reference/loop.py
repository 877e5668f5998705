"""The reference: a whole run as a plain serial loop in one process. Every schedule must equal it.

For each iteration: sample G images for each of N prompts step by step, score them, centre the
scores within each group, replay every trained transition with gradients, and step the optimizer,
once or for each share of the samples. No batching tricks, no workers; state lives in torch's own
optimizer, of masters in float32 or better, which are copied into the policy in its dtypes. Told
which versions a stale schedule generated with, it generates with those.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch
from torch import nn

from digen_core.config.run import RunConfig
from digen_core.control.schedule import own_steps_in
from digen_core.data.draws import prompts_with_refills
from digen_core.data.prompts import Prompt
from digen_core.errors import ConfigError
from digen_core.maths.ddpo import RewardHistory
from digen_core.models.policy import Policy
from digen_core.models.trainable import (
    initial_weights,
    set_weights,
    trainable_parameters,
)
from digen_core.reference.group import (
    Group,
    add_start_velocities,
    dealt,
    forward_losses,
    replay_losses,
    sample_group,
    step_kl,
    step_margins,
)
from digen_core.reference.metrics import Columns, sample_means
from digen_core.reference.scores import scores_of
from digen_core.reference.screening import screened
from digen_core.rewards.asked import Asked
from digen_core.rewards.scoring import RewardFn
from digen_core.rollout.seen import as_seen
from digen_core.training.advantages import advantages_of
from digen_core.training.deal import deal_of_iteration
from digen_core.training.optimizer import (
    adamw,
    learning_rate_of,
    mixed,
    moving_average,
    step_average,
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

    Raises:
        ConfigError: in float16 the gradients of single pairs are 0, and this loop scales none.
    """
    if config.model.dtype == "float16":
        raise ConfigError(
            "model.dtype is float16, whose loss the serial loop does not scale; use bfloat16 or "
            "float32 to compare with it"
        )
    first = initial_weights(policy, config.train.lora, seed=config.seed)
    masters = {n: nn.Parameter(torch.tensor(v, device=policy.device)) for n, v in first.items()}
    optimizer = adamw(
        list(masters.values()), config.train, learning_rate=config.train.learning_rate
    )
    average = moving_average(masters.values(), config.train)
    metrics, updates = [], 0
    history: RewardHistory = {}
    versions = [first]
    generators = versions[:]  # what samples: the versions, or an old policy that lags behind them
    for iteration in range(config.num_iterations):
        generated_by, asked_of = (
            partial(_generator, found, version_of, iteration, updates)
            for found in (generators, versions)
        )
        groups, row, history = _rollout(
            config, policy, prompts, rewards, iteration, generated_by, asked_of, history
        )
        start = generators[updates]
        if config.algorithm.compares_with_start and (config.keeps_old or config.keeps_start):
            set_weights(policy, start)
            add_start_velocities(config, list(groups.values()))
        deal, norms = deal_of_iteration(config, iteration), list[float]()
        for update in range(deal.num_updates):
            set_weights(policy, versions[updates])
            rate = learning_rate_of(config.train, updates, config.num_updates)
            epoch = deal.epoch_of(update)
            norm = _train(config, policy, optimizer, dealt(groups, deal, update), rate, epoch)
            if norm is None:
                continue
            norms.append(norm)
            if math.isfinite(norm):
                updates += 1
                versions.append(_weights_of(masters))
                decay = config.algorithm.old_share(updates)
                generators.append(mixed(start, versions[-1], decay) if decay else versions[-1])
                step_average(average, masters.values(), updates, config.train)
        made = [norm for norm in norms if math.isfinite(norm)]
        row["train/grad_norm"] = float(np.mean(made)) if made else 0.0
        row["numerics/skipped_updates"] = float(len(norms) - len(made))
        metrics.append(row)
        on_iteration(iteration, row)
    weights = versions[updates]
    set_weights(policy, weights)
    shadows = zip(masters, average.shadow_params, strict=True)
    ema = {name: shadow.cpu().numpy() for name, shadow in shadows}
    return SerialRun(weights, ema if config.train.ema_decay else weights, metrics)


def _generator(
    generators: list[Weights],
    version_of: Callable[[int, int], int] | None,
    iteration: int,
    newest: int,
    group: int,
) -> Weights:
    """Return the weights of a group's version, of those that generate or of the versions."""
    return generators[newest if version_of is None else version_of(iteration, group)]


def _weights_of(parameters: Mapping[str, nn.Parameter]) -> Weights:
    """Return a copy of the weights as they are now."""
    return {name: p.detach().cpu().numpy().copy() for name, p in parameters.items()}


@torch.no_grad()
def _rollout(
    config: RunConfig,
    policy: Policy,
    prompts: Sequence[Prompt],
    rewards: Mapping[str, RewardFn],
    iteration: int,
    generated_by: Callable[[int], Weights],
    asked_of: Callable[[int], Weights],
    history: RewardHistory,
) -> tuple[dict[int, Group], dict[str, float], RewardHistory]:
    """Sample each group of one iteration with its weights, score it, and give it advantages."""
    groups, columns, of_steps = dict[int, Group](), dict[int, Columns](), dict[int, np.ndarray]()
    nonfinite, dropped = set[int](), set[int]()
    prompts = prompts_with_refills(config, prompts, iteration)
    keys = {index: prompt.key for index, prompt in enumerate(prompts)}
    count = config.rollout.prompts_per_iteration
    first, num_refilled = config.rollout.first_group, 0
    drawn = current = list(range(first, first + count))
    while drawn:
        for index in drawn:
            weights = generated_by(index), asked_of(index)
            place = iteration, index
            group, scores, asked = _scored(config, policy, prompts[index], rewards, place, weights)
            of_steps.update(asked)
            if group is not None:
                groups[index] = group
            if scores is None:
                nonfinite.add(index)
            else:
                columns[index] = scores
        known = {index: columns[index] for index in current if index in columns}
        lacking = nonfinite.intersection(current)
        found = advantages_of(config, known, keys, history, of_steps or None, lacking)
        dropped |= found.dropped
        apart = count + first  # a group, and the one that takes its place
        drawn = [index + apart for index in found.skipped if index + apart < len(prompts)]
        num_refilled += len(drawn)
        current = sorted({*current, *drawn} - {index - apart for index in drawn})
    for index in set(current) - set(found.skipped):
        values = torch.from_numpy(found.values[index])
        groups[index].advantages = values.to(policy.device, policy.latent_dtype)
        groups[index].chosen = list(found.chosen[index]) if found.chosen else None
    sound = [index for index in columns if index not in dropped]
    own = {index: of_steps[index] for index in sound if index in of_steps}
    row = sample_means(config, {index: columns[index] for index in sound}, own)
    row["groups/zero_variance"] = float(len(set(found.skipped) - dropped))
    row["numerics/dropped_groups"] = float(len(dropped))
    if config.rollout.refill:
        row["groups/refilled"] = float(num_refilled)
    return {i: groups[i] for i in current if i in groups}, row, found.history


def _scored(
    config: RunConfig,
    policy: Policy,
    prompt: Prompt,
    rewards: Mapping[str, RewardFn],
    place: tuple[int, int],
    weights: tuple[Weights, Weights],
) -> tuple[Group | None, Columns | None, dict[int, np.ndarray]]:
    """Return a group, its scores, and what its trained steps are asked for, by its index.

    Without a group its candidates lack numbers; without scores its samples do.

    Args:
        config: of the run.
        policy: that gets the weights.
        prompt: of the group.
        rewards: by name.
        place: (iteration, index).
        weights: that generate, and that are asked.
    """
    set_weights(policy, weights[0])
    origin = None
    if config.rollout.screening is not None:
        origin = screened(config, policy, prompt, rewards, place)
        if origin is None:
            return None, None, {}
    group = sample_group(config, policy, prompt, place, origin)
    images, latents = as_seen(group.policy, group.latents[-1], config.rewards)
    of_steps = _asked(config, policy, place[1], group, weights[1])
    numbers = torch.from_numpy(of_steps.get(place[1], np.zeros(1)))
    if not _are_finite(*group.latents, *group.logprobs.values(), images, numbers):
        _refuse(config, *place)
        return group, None, of_steps
    samples = [prompt] * config.rollout.group_size
    asked = Asked.of(samples, config.size_of(*place), policy.device)
    return group, scores_of(config, rewards, prompt, asked, images, latents), of_steps


def _are_finite(*values: torch.Tensor | None) -> bool:
    return all(value is None or bool(value.isfinite().all()) for value in values)


def _refuse(config: RunConfig, iteration: int, group: int) -> None:
    """Raise FloatingPointError if a sample that is NaN or infinite ends the run."""
    if config.numerics.samples == "fail":
        raise FloatingPointError(
            f"iteration {iteration + 1}, group {group}: a sample is NaN or infinite"
        )


def _asked(
    config: RunConfig, policy: Policy, index: int, group: Group, weights: Weights
) -> dict[int, np.ndarray]:
    """Return what a group's trained steps are asked for, [G, K], if anything is.

    A margin is that of the weights given.
    """
    if config.kl_reward:
        return {index: step_kl(config, group)}
    if not config.asks_of_steps:
        return {}
    set_weights(policy, weights)
    return {index: step_margins(config, group)}


def _train(
    config: RunConfig,
    policy: Policy,
    optimizer: torch.optim.Optimizer,
    groups: list[tuple[Group, list[int]]],
    learning_rate: float,
    epoch: int,
) -> float | None:
    """Add up the gradient of every pair of an update, and step its masters. Returns its norm.

    With a loss or a gradient that is NaN or infinite there is no step, and the norm is NaN.

    Raises:
        FloatingPointError: there is one, and that ends the run.
    """
    optimizer.zero_grad()
    (options,) = optimizer.param_groups
    parameters, masters = list(trainable_parameters(policy).values()), options["params"]
    is_finite = True
    for group, samples in groups:
        own = own_steps_in(group.own_steps, config.rollout.group_size, epoch)
        for step in group.trained:
            lose = forward_losses if config.trains_clean else replay_losses
            trained = [sample for sample in samples if not own or step in own[sample]]
            chosen = lose(config, group, step)[trained]
            is_finite = is_finite and bool(chosen.isfinite().all())
            weight = config.pair_weight(len(group.latents) - 1)
            loss = weight * chosen.sum() / config.pairs_per_update
            found = torch.autograd.grad(loss, parameters, allow_unused=True)
            for master, gradient in zip(masters, found, strict=True):
                if gradient is not None:
                    # A copy: that of an idle expert is one 0, which is expanded.
                    wide = gradient.to(master.dtype, copy=True)
                    master.grad = wide if master.grad is None else master.grad + wide
    if not groups:
        return None
    options["lr"] = learning_rate
    norm = nn.utils.clip_grad_norm_(masters, config.train.max_grad_norm)
    if not (is_finite and norm.isfinite()):
        if config.numerics.updates == "fail":
            raise FloatingPointError("a loss or the gradient is NaN or infinite")
        return math.nan
    optimizer.step()
    return float(norm)
