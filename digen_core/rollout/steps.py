"""Which denoising steps of an iteration have noise, and which are trained.

Drawn once for an iteration from the run's seed, so that all samples of all groups share them
whatever device they run on.
"""

from typing import NamedTuple

from digen_core.algorithms.mix_grpo import mix_grpo_window
from digen_core.algorithms.windows import random_trained_steps, trained_steps
from digen_core.config.algorithm import (
    DanceGrpoConfig,
    DiffusionNftConfig,
    MixGrpoConfig,
)
from digen_core.config.run import RunConfig
from digen_core.seeding import STEPS, numpy_generator_for


class Steps(NamedTuple):
    """Steps of an iteration's trajectories, ascending."""

    noisy: tuple[int, ...]  # the others are plain Euler steps of the ODE
    trained: tuple[int, ...]


def steps_of_iteration(config: RunConfig, iteration: int) -> Steps:
    """Return the noisy and the trained steps of an iteration of a run."""
    algorithm, num_steps = config.algorithm, config.rollout.num_steps
    generator = numpy_generator_for(config.seed, STEPS, iteration)
    if isinstance(algorithm, DiffusionNftConfig):
        return Steps((), tuple(range(algorithm.num_trained(num_steps))))
    if isinstance(algorithm, DanceGrpoConfig):
        (drawn,) = random_trained_steps(
            1, num_steps, fraction=algorithm.trained_fraction, generator=generator
        )
        return Steps(tuple(range(num_steps - 1)), tuple(int(step) for step in drawn))
    if isinstance(algorithm, MixGrpoConfig):
        window = mix_grpo_window(
            iteration,
            num_steps=algorithm.end_of_noise(num_steps),
            size=algorithm.window_size,
            strategy=algorithm.strategy,
            stride=algorithm.stride,
            iterations=algorithm.iterations_per_window,
            roll_back=algorithm.roll_back,
            generator=generator,
        )
    else:
        window = trained_steps(
            num_steps,
            fraction=algorithm.trained_fraction,
            window=algorithm.window,
            generator=generator,
        )
    return Steps(tuple(window), tuple(window))


def steps_to_keep(config: RunConfig, iteration: int) -> tuple[int, ...]:
    """Return the steps whose latents training needs: where clean latents are trained, the last."""
    if config.trains_clean:
        return (config.rollout.num_steps - 1,)
    return steps_of_iteration(config, iteration).trained
