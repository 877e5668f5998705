"""Which denoising steps are noisy and trained.

FlowGRPO trains the first share of all steps; Flow-GRPO-Fast trains a window whose place is drawn
anew. We draw it once for an iteration from the run's seed, so that all samples of all groups share
it whatever device they run on; a window per request biases the spread of rewards in a group.
"""

import numpy as np


def trained_steps(
    num_steps: int,
    *,
    fraction: float,
    window: tuple[int, int, int] | None,
    generator: np.random.Generator,
) -> range:
    """Return the trained steps of one iteration.

    Args:
        num_steps: denoising steps of a trajectory.
        fraction: the first floor(fraction * num_steps) steps are trained.
        window: (size, low, high) instead: a start drawn uniformly from [low, high - size].
        generator: of the iteration.
    """
    if window is None:
        return range(int(num_steps * fraction))
    size, low, high = window
    start = int(generator.integers(low, high - size, endpoint=True))
    return range(start, start + size)
