"""Gradients of a member of a device: of pairs that are alike, on its engine."""

from dataclasses import replace

import torch

from digen_core.training.coded import agreement_of
from digen_core.training.gradient_sum import PackGradient, pack_gradient
from digen_core.training.pairs import CleanPairs, Pairs, rows_of
from tasks.worker.engine import Engine


def part_gradient(
    engine: Engine, iteration: int, group: int, pairs: Pairs | CleanPairs
) -> PackGradient:
    """Return this member's part of the gradient of pairs that are alike."""
    policy, trained = engine.policy_of(iteration, group), engine.versions.trained
    return pack_gradient(policy, pairs, engine.config, engine.gang, trained)


def compared_gradient(
    engine: Engine, iteration: int, group: int, pairs: Pairs | CleanPairs
) -> PackGradient:
    """Return a part of a gradient, compared with the one without coded cuts."""
    found = part_gradient(engine, iteration, group, pairs)
    policy = engine.policy_of(iteration, group)
    agreement = agreement_of(policy, pairs, found, engine.config, engine.gang)
    return replace(found, metrics=replace(found.metrics, agreement=agreement))


@torch.no_grad()
def with_start(
    engine: Engine, iteration: int, group: int, pairs: Pairs | CleanPairs, trained_from: int
) -> Pairs | CleanPairs:
    """Return pairs with the velocities of what generated when the iteration began.

    Where losses do not ask for them, or the trained version itself did, they stay as they are.
    """
    config, is_first = engine.config, trained_from == engine.version
    asked = config.keeps_old if is_first else config.keeps_start
    if not (asked and config.algorithm.compares_with_start):
        return pairs
    policy = engine.policy_of(iteration, group)
    found = torch.zeros_like(pairs.x)  # of the others' pairs nobody asks here
    rows = engine.gang.computed(len(found))
    own = rows_of(pairs, rows, policy.device)
    with engine.start_policy(trained_from):
        policy = policy.in_training()
        velocity = policy.velocity(own.x, own.sigma, policy.without_padding(own.condition))
    found[rows] = velocity.to(found)
    return replace(pairs, start_velocity=found)
