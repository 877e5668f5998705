"""Random streams named by what they are for, so that order of execution cannot change results."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

# First element of a stream's path: what the stream is for.
NOISE, PROMPT_ORDER, STEPS, EVALUATION_NOISE = range(4)
INITIAL_WEIGHTS, FORWARD_NOISE, REFILL, DEAL = range(4, 8)
EMPTIED_PROMPTS = 8


def seed_sequence(seed: int, *path: int) -> np.random.SeedSequence:
    """Return the seed of the stream (seed, path), independent of every other path."""
    return np.random.SeedSequence([seed, *path])


def generator_for(seed: int, *path: int) -> torch.Generator:
    """Return a CPU generator for the stream (seed, path)."""
    state = seed_sequence(seed, *path).generate_state(1, np.uint64)[0]
    return torch.Generator().manual_seed(int(state) >> 1)


def numpy_generator_for(seed: int, *path: int) -> np.random.Generator:
    """Return a NumPy generator for the stream (seed, path)."""
    return np.random.default_rng(seed_sequence(seed, *path))


def noise_of(
    shape: Sequence[int],
    *,
    seed: int,
    purpose: int,
    group: tuple[int, int],
    samples: Sequence[int],
    step: int,
    shared: bool = False,
) -> Tensor:
    """Draw standard normal noise, float32 [len(samples), *shape] on the CPU.

    Each row depends on (seed, purpose, group, sample, step) only, never on who draws it or with
    whom: it is the same for every fragment size and device.

    Args:
        shape: of one sample's latent.
        seed: of the run.
        purpose: NOISE, FORWARD_NOISE or EVALUATION_NOISE.
        group: (iteration, index of the group in it).
        samples: indices of the samples in the group.
        step: 0 is the initial latent, t + 1 the noise added by denoising step t, or mixed in for
            its noise level.
        shared: whether all samples of the group have one noise, that of the first.
    """
    drawn = range(1) if shared else samples
    rows = [
        torch.randn(tuple(shape), generator=generator_for(seed, purpose, *group, sample, step))
        for sample in drawn
    ]
    return torch.stack(rows).expand(len(samples), *shape).contiguous()
