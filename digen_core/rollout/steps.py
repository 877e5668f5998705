"""The denoising steps of an iteration that have noise, that are trained, and that are kept.

Drawn from the run's seed for an iteration, and where each sample has its own of them for a group:
the same whatever device it runs on.
"""

from collections.abc import Sequence

from digen_core.algorithms.base import Steps
from digen_core.config.run import RunConfig
from digen_core.control.schedule import OwnSteps
from digen_core.seeding import STEPS, numpy_generator_for


def steps_of_iteration(config: RunConfig, iteration: int, num_steps: int | None = None) -> Steps:
    """Return the noisy and the trained steps of an iteration's trajectories.

    Args:
        config: of the run.
        iteration: from 0.
        num_steps: of the trajectories; None: as the config says. Where fewer are taken after the
            last noisy one, which ones are noisy follows from the config's.
    """
    if num_steps is None or config.algorithm.shortens:
        num_steps = config.rollout.num_steps
    generator = numpy_generator_for(config.seed, STEPS, iteration)
    return config.algorithm.steps(num_steps, iteration, generator)


def num_steps_taken(config: RunConfig, iteration: int, num_steps: int | None = None) -> int:
    """Return the steps of an iteration's trajectories.

    Args:
        config: of the run.
        iteration: from 0.
        num_steps: that their prompt asks for; None: as the config says.
    """
    num_steps = num_steps or config.rollout.num_steps
    if not config.algorithm.shortens:
        return num_steps
    return config.algorithm.num_taken(num_steps, max(steps_of_iteration(config, iteration).noisy))


def own_steps_of_group(
    config: RunConfig, iteration: int, group: int, num_steps: int | None = None
) -> tuple[tuple[int, ...], ...]:
    """Return the steps that each sample of a group trains; empty: all that the iteration does.

    Where each epoch draws them anew, those of all samples in one epoch after the other.
    """
    generator = numpy_generator_for(config.seed, STEPS, iteration, group)
    size, steps = config.rollout.group_size, num_steps or config.rollout.num_steps
    epochs = config.train.epochs if config.algorithm.redraws else 1
    return config.algorithm.own_steps(size * epochs, steps, generator)


def own_steps_of_groups(
    config: RunConfig, iteration: int, num_groups: int, group_steps: Sequence[int] = ()
) -> OwnSteps:
    """Return the steps that each sample of an iteration's groups trains; empty: all that it does.

    Args:
        config: of the run.
        iteration: from 0.
        num_groups: those that may take the place of others included.
        group_steps: of the trajectories of each; none: as the config says.
    """
    if not group_steps:
        drawn = (own_steps_of_group(config, iteration, group) for group in range(num_groups))
        return tuple(own for own in drawn if own)
    trained = {steps: steps_of_iteration(config, iteration, steps).trained for steps in group_steps}
    return tuple(
        own_steps_of_group(config, iteration, group, steps)
        or (trained[steps],) * config.rollout.group_size
        for group, steps in enumerate(group_steps)
    )


def steps_of_group(config: RunConfig, iteration: int, group: int, num_steps: int) -> Steps:
    """Return the noisy steps of a group's trajectories, and those that some of them train."""
    found = steps_of_iteration(config, iteration, num_steps)
    if not config.algorithm.own_noise:
        return found
    own = own_steps_of_group(config, iteration, group, num_steps)[0]
    return Steps(own, own)


def steps_to_keep(config: RunConfig, iteration: int, group: int, num_steps: int) -> tuple[int, ...]:
    """Return the steps whose latents training needs: where clean latents are trained, the last.

    Args:
        config: of the run.
        iteration: from 0.
        group: of the iteration.
        num_steps: of the trajectories.
    """
    if config.trains_clean:
        return (num_steps - 1,)
    return steps_of_group(config, iteration, group, num_steps).trained
