"""Which denoising steps are noisy and trained.

FlowGRPO trains the first share of all steps; Flow-GRPO-Fast trains a window whose place is drawn
anew. We draw it once for an iteration from the run's seed, so that all samples of all groups share
it whatever device they run on; a window per request biases the spread of rewards in a group.
DanceGRPO and DiffusionNFT train a random subset of the steps, or noise levels, of each sample.
MixGRPO's windows are in mix_grpo.py.
"""

import numpy as np
import numpy.typing as npt


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


def stratified_steps(
    first: int, last: int, number: int, generator: np.random.Generator
) -> tuple[int, ...]:
    """Return one step of each of ``number`` parts of ``range(first, last)``, ascending.

    Source: AWM (arXiv:2509.25050), whose code draws them for each batch; we once for an iteration.

    Args:
        first: of all steps.
        last: one more than the last of them; at least ``first + number``.
        number: of parts, as equal as parts of whole steps can be.
        generator: of the iteration.
    """
    bounds = [first + (last - first) * part // number for part in range(number + 1)]
    return tuple(int(step) for step in generator.integers(bounds[:-1], bounds[1:]))


def random_trained_steps(
    num_samples: int, num_steps: int, num_trained: int, generator: np.random.Generator
) -> npt.NDArray[np.int64]:
    """Return [num_samples, num_trained] steps, drawn for each sample without repeats; rows ascend.

    Sources: DanceGRPO (arXiv:2505.07818), whose code draws of all steps but the last; DiffusionNFT
    (arXiv:2509.16117), whose code draws of all noise levels of the schedule. Both train them in the
    order drawn, which no sum sees.

    Args:
        num_samples: of the iteration or of a group.
        num_steps: the first ones, of which they are drawn.
        num_trained: of each sample; published floor(0.6 * 15), floor(0.99 * 10).
        generator: of the iteration or the group.

    Raises:
        ValueError: if none is trained, or more than there are.
    """
    if not 1 <= num_trained <= num_steps:
        raise ValueError(
            f"num_trained ({num_trained}) of {num_steps} steps must be at least one and at most "
            "all of them"
        )
    candidates = np.tile(np.arange(num_steps), (num_samples, 1))
    return np.sort(generator.permuted(candidates, axis=1)[:, :num_trained], axis=1)
