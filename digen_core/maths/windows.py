"""Which denoising steps are noisy and trained.

FlowGRPO trains the first share of all steps; Flow-GRPO-Fast trains a window whose place is drawn
anew. We draw it once for an iteration from the run's seed, so that all samples of all groups share
it whatever device they run on; a window per request biases the spread of rewards in a group.
DanceGRPO and DiffusionNFT train a random subset of the steps, or noise levels, of each sample.

MixGRPO's window slides over the iterations of a run (arXiv:2507.21802, and its code). All steps
outside it are ODE steps. The window of ``size`` steps starts at position 0, ``stride``, 2 *
``stride``, ... and stays at each position for some iterations:

    progressive   iterations
    decay         max(min_iterations, floor(iterations * (1 - p) + min_iterations * p)),
                  p = position / num_steps
    exp_decay     ceil(iterations * exp(-0.1 * max(0, position - 13)))
    random        1, at a position drawn uniformly from [0, num_steps - size]

Published settings: 25 denoising steps of which the last two are never trained (num_steps 23),
size 4, stride 1, 25 iterations, roll back. A stride of 0 freezes the window at 0, as Flash*.

Deviations: the published window runs over the end of the steps and shrinks to nothing, for
``iterations`` iterations before it rolls back and for ever without; and it starts at 0 with
"random". Here the last position is num_steps - size, reached once whatever the stride, and no
window is ever empty or short. The position is a function of the iteration, without state.

MixGRPO-Flash takes fewer steps after the window, of noise levels that are spread anew: with l its
last step, max(1, floor(fraction * (num_steps - l)) - 1) of num_steps - l - 1. The published code
spreads max(1, floor(...)) levels over them, the first and the last included: so many steps less
one, and where that is none it ends with noise that it does not take out. Published fractions: 0.4,
0.2 (Flash*).
"""

import math

import numpy as np
import numpy.typing as npt

from digen_core.maths.names import WindowStrategy

_EXP_DECAY_FROM, _EXP_DECAY_RATE = 13, 0.1


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

    Source: AWM (arXiv:2509.25050), whose code draws them for each batch of samples; so does
    Flow-Factory's for DiffusionNFT.

    Args:
        first: of all steps.
        last: one more than the last of them; at least ``first + number``.
        number: of parts, as equal as parts of whole steps can be.
        generator: of the iteration or the group.
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


def mix_grpo_window(
    iteration: int,
    *,
    num_steps: int,
    size: int,
    strategy: WindowStrategy,
    stride: int,
    iterations: int,
    min_iterations: int = 1,
    roll_back: bool,
    generator: np.random.Generator,
) -> range:
    """Return the noisy, trained steps of an iteration: always ``size`` of them.

    Args:
        iteration: from 0.
        num_steps: steps that may be trained, 0 .. num_steps - 1.
        size: of the window.
        strategy: how long the window stays at each position.
        stride: steps between positions; equal to ``size`` the windows do not overlap.
        iterations: at the first position.
        min_iterations: what "decay" falls to.
        roll_back: begin anew after the last position; else stay there.
        generator: of the iteration; only "random" draws from it.

    Raises:
        ValueError: if the window does not fit, or a number is out of range.
    """
    last = num_steps - size
    if not (size >= 1 and last >= 0 and stride >= 0 and iterations >= 1 and min_iterations >= 1):
        raise ValueError(
            f"a window of {size} step(s) in {num_steps}, stride {stride}, iterations {iterations}, "
            f"min_iterations {min_iterations}: needs 1 <= size <= num_steps, stride >= 0 and at "
            "least one iteration per position"
        )
    if strategy == "random":
        start = int(generator.integers(0, last, endpoint=True))
        return range(start, start + size)
    positions = [*range(0, last, stride), last] if stride else [0]
    durations = [
        _duration(position, num_steps, strategy, iterations, min_iterations)
        for position in positions
    ]
    ends = np.cumsum(durations)
    elapsed = iteration % int(ends[-1]) if roll_back else min(iteration, int(ends[-1]) - 1)
    start = positions[int(np.searchsorted(ends, elapsed, side="right"))]
    return range(start, start + size)


def num_tail_steps(num_steps: int, last: int, fraction: float) -> int:
    """Return the steps that are taken after the last noisy one.

    Args:
        num_steps: of the schedule.
        last: index of the last noisy one.
        fraction: of them; 1 takes them all.
    """
    return max(1, int(fraction * (num_steps - last)) - 1)


def _duration(
    position: int, num_steps: int, strategy: str, iterations: int, min_iterations: int
) -> int:
    match strategy:
        case "progressive":
            return iterations
        case "decay":
            share = position / num_steps
            return max(min_iterations, int(iterations * (1 - share) + min_iterations * share))
        case "exp_decay":
            beyond = max(0, position - _EXP_DECAY_FROM)
            return math.ceil(iterations * math.exp(-_EXP_DECAY_RATE * beyond))
        case _:
            raise ValueError(
                f"strategy ({strategy!r}) must be 'progressive', 'decay', 'exp_decay' or 'random'"
            )
