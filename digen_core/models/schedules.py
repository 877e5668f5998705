"""Noise schedules: taken from a diffusers scheduler as its pipeline asks for them, or shifted.

A schedule is float32 [num_steps + 1], from 1 (noise) down to 0 (clean).
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from diffusers.pipelines.flux.pipeline_flux import calculate_shift
from torch import Tensor

from digen_core.errors import ConfigError
from digen_core.inputs.text import number_of


def scheduler_sigmas(scheduler: Any, **arguments: Any) -> Tensor:
    """Return the sigmas of a fresh scheduler with the same settings.

    Args:
        scheduler: of a pipeline; its state is left alone.
        **arguments: of ``set_timesteps``, as the family's pipeline passes them.
    """
    fresh = type(scheduler).from_config(scheduler.config)
    fresh.set_timesteps(**arguments)
    sigmas: Tensor = fresh.sigmas.to("cpu", torch.float32)
    return sigmas


def dynamic_shift(scheduler: Any, num_tokens: int) -> float:
    """Return mu, linear in the number of image tokens (SD3, arXiv:2403.03206, section 5.3.2)."""
    settings = scheduler.config
    mu: float = calculate_shift(
        num_tokens,
        settings.base_image_seq_len,
        settings.max_image_seq_len,
        settings.base_shift,
        settings.max_shift,
    )
    return mu


def sigmas_shifted_by_size(scheduler: Any, num_steps: int, num_tokens: int) -> Tensor:
    """Return evenly spaced sigmas as a scheduler shifts them for an image's tokens."""
    return scheduler_sigmas(
        scheduler,
        sigmas=np.linspace(1.0, 1 / num_steps, num_steps),
        mu=dynamic_shift(scheduler, num_tokens),
    )


def with_tail(sigmas: Tensor, first: int, num_steps: int) -> Tensor:
    """Return a schedule that takes other steps from one on, float32 [first + num_steps + 1].

    They are spread as the schedule's own are: evenly, and shifted. A schedule's level i of T is
    shift u / (1 + (shift - 1) u) with u = 1 - i / T, for a shift that is the same at all i in those
    of most families; between two levels its logarithm is interpolated.

    Args:
        sigmas: [T + 1], falling to 0; below 1 from the second one on.
        first: of the other steps, from 1 to T - 1.
        num_steps: of them.

    Raises:
        ValueError: there is no such step, or there are no steps.
    """
    length = len(sigmas) - 1
    if not (0 < first < length and num_steps >= 1):
        raise ValueError(
            f"{num_steps} steps from step {first} of {length} on: needs 1 <= first < {length} and "
            "at least one step"
        )
    inner = sigmas[1:-1].double().numpy()
    known = 1 - np.arange(1, length) / length
    log_shift = np.log(inner * (1 - known) / (known * (1 - inner)))
    u = np.linspace(1 - first / length, 0, num_steps + 1)
    shift = np.exp(np.interp(u, known[::-1], log_shift[::-1]))
    tail = torch.from_numpy(shift * u / (1 + (shift - 1) * u)).float()
    tail[0] = sigmas[first]
    return torch.cat([sigmas[:first], tail])


def named_sigmas(levels: Sequence[float], num_steps: int) -> Tensor:
    """Return named noise levels and the 0 that follows, float32 [num_steps + 1].

    Raises:
        ConfigError: they are those of another number of steps.
    """
    if len(levels) != num_steps:
        raise ConfigError(
            f"model.sigmas names the noise levels of {number_of(len(levels), 'step')}, but "
            f"{num_steps} are asked for; use as many"
        )
    return torch.tensor([*levels, 0.0])


def shifted_sigmas(num_steps: int, shift: float) -> Tensor:
    """Return shift u / (1 + (shift - 1) u) for u falling evenly from 1 to 0 (DanceGRPO).

    Deviation: DanceGRPO feeds the model int(1000 sigma), so that its model sees another noise level
    than its transition, by up to 0.001. Here both are sigma.
    """
    u = torch.linspace(1, 0, num_steps + 1)
    return shift * u / (1 + (shift - 1) * u)
