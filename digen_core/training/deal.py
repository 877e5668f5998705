"""The deal: which of an iteration's updates trains which of its samples, drawn from the seed."""

from digen_core.config.run import RunConfig
from digen_core.control.schedule import Deal
from digen_core.seeding import DEAL, numpy_generator_for


def deal_of_iteration(config: RunConfig, iteration: int) -> Deal:
    """Deal the samples of an iteration of a run to its updates, the same on whatever devices.

    In each epoch whole groups, or the trained samples of all groups, are shuffled and dealt in
    equal shares.
    """
    train, units = config.train, config.dealt_units
    orders = [
        numpy_generator_for(config.seed, DEAL, iteration, epoch).permutation(units).tolist()
        for epoch in range(train.epochs)
    ]
    groups, samples = config.rollout.prompts_per_iteration, config.trained_per_group
    return Deal.of(orders, train.updates_per_iteration, groups, samples)
