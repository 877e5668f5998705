"""The denoising steps of an iteration that have noise, that are trained, and that are kept.

Drawn once for an iteration from the run's seed, so that all samples of all groups share them
whatever device they run on.
"""

from digen_core.algorithms.base import Steps
from digen_core.config.run import RunConfig
from digen_core.seeding import STEPS, numpy_generator_for


def steps_of_iteration(config: RunConfig, iteration: int) -> Steps:
    """Return the noisy and the trained steps of an iteration of a run."""
    generator = numpy_generator_for(config.seed, STEPS, iteration)
    return config.algorithm.steps(config.rollout.num_steps, iteration, generator)


def steps_to_keep(config: RunConfig, iteration: int) -> tuple[int, ...]:
    """Return the steps whose latents training needs: where clean latents are trained, the last."""
    if config.trains_clean:
        return (config.rollout.num_steps - 1,)
    return steps_of_iteration(config, iteration).trained
