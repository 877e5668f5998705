"""The optimizer step as a function: (state of version k, gradient) -> state of version k + 1.

The maths is torch's AdamW and gradient clipping and diffusers' EMAModel; only where their state
lives is ours: on the host, dealt over the members of a gang by rows, whether their weights are
sharded or not (ZeRO, arXiv:1910.02054). A version is made beside the one before, which another
thread may be writing to disk.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import numpy as np
import torch
from diffusers.training_utils import EMAModel
from torch import Tensor, nn

from digen_core.config.train import TrainConfig
from digen_core.gang.members import ALONE, Gang
from digen_core.training.train_state import TrainState, version_hash
from digen_core.transport.arrays import Weights, viewed

_AT_ONCE: Final = 1 << 26  # numbers that are stepped at once: little memory beside the state


class NonfiniteGradientError(FloatingPointError):
    """A gradient is NaN or infinite: no version can be made of it."""


def learning_rate_of(config: TrainConfig, update: int, num_updates: int) -> float:
    """Return the learning rate of an update, counted from 0, of a run of ``num_updates``."""
    if config.learning_rate_decay == "none":
        return config.learning_rate
    return config.learning_rate * (1 + math.cos(math.pi * update / num_updates)) / 2


def optimizer_step(
    state: TrainState,
    gradient: Mapping[str, Tensor],
    config: TrainConfig,
    *,
    learning_rate: float,
    old_decay: float = 0.0,
    trained_from: int | None = None,
    keep_start: bool = False,
    gang: Gang = ALONE,
) -> TrainState:
    """Return the next version (collective).

    Args:
        state: of the current version.
        gradient: by parameter name, of this member's rows; those without stay.
        config: AdamW's, clipping's and the average's settings.
        learning_rate: of this update.
        old_decay: share of the old policy's weights that stays of those with which the iteration
            began, if the state has one.
        trained_from: version with which the iteration began; None: this one.
        keep_start: keep what generated then beside the next version, between whose updates it is.
        gang: whose member this process is.

    Raises:
        NonfiniteGradientError: the gradient's norm is NaN or infinite, on all members.
    """
    norm = _norm(gradient, gang)
    if not np.isfinite(float(norm)):
        text = f"the gradient's norm is {norm:g} at version {state.version}"
        raise NonfiniteGradientError(text)
    weights: Weights = {}
    exp_avg, exp_avg_sq = dict(state.exp_avg), dict(state.exp_avg_sq)
    for names in _batches(state.weights):
        parameters = {}
        for name in names:
            master = nn.Parameter(torch.from_numpy(state.weights[name].copy()))
            if name in gradient:  # some families compute parts in float32 whatever the dtype
                master.grad = gradient[name].detach().to("cpu", master.dtype, copy=True)
            parameters[name] = master
        own = list(parameters.values())
        nn.utils.clip_grads_with_norm_(own, config.max_grad_norm, norm)
        optimizer = adamw(own, config, learning_rate=learning_rate)
        for name, parameter in parameters.items():
            optimizer.state[parameter] = {
                "step": torch.tensor(float(state.version)),
                "exp_avg": torch.from_numpy(state.exp_avg[name].copy()),
                "exp_avg_sq": torch.from_numpy(state.exp_avg_sq[name].copy()),
            }
        optimizer.step()
        for name, parameter in parameters.items():
            weights[name] = parameter.detach().numpy()
            exp_avg[name] = optimizer.state[parameter]["exp_avg"].numpy()
            exp_avg_sq[name] = optimizer.state[parameter]["exp_avg_sq"].numpy()
    start = _start_of(state, trained_from)
    old = None if state.old is None else mixed(start, weights, old_decay)
    return TrainState(
        version=state.version + 1,
        weights=weights,
        weights_hash=version_hash(weights, old, gang),
        exp_avg=exp_avg,
        exp_avg_sq=exp_avg_sq,
        ema=_averaged(state, weights, config),
        old=old,
        start=start if keep_start else None,
        lengths=state.lengths,
        grad_norm=float(norm),
    )


def _start_of(state: TrainState, trained_from: int | None) -> Weights:
    """Return what generated when the iteration began in which a state is stepped."""
    if state.start is not None and trained_from != state.version:
        return state.start
    return state.weights if state.old is None else state.old


def _norm(gradient: Mapping[str, Tensor], gang: Gang) -> Tensor:
    """Return the norm of the whole gradient, dealt over members, on the CPU (collective)."""
    norm = nn.utils.get_total_norm(gradient.values()).cpu()
    if gang.size == 1:
        return norm
    square = norm.double().square()
    gang.add_up([square])
    return square.sqrt().to(norm.dtype)


def _batches(weights: Weights) -> Iterator[list[str]]:
    """Yield the names of parameters that are stepped at once."""
    names: list[str] = []
    size = 0
    for name, value in weights.items():
        if names and size + value.size > _AT_ONCE:
            yield names
            names, size = [], 0
        names.append(name)
        size += value.size
    yield names


def mixed(old: Weights, weights: Weights, decay: float) -> Weights:
    """Return decay * old + (1 - decay) * weights, in the weights' precision."""
    return {
        name: (decay * old[name] + (1 - decay) * value).astype(value.dtype)
        for name, value in weights.items()
    }


def adamw(
    parameters: list[nn.Parameter], config: TrainConfig, *, learning_rate: float
) -> torch.optim.AdamW:
    """Return AdamW with the config's settings."""
    return torch.optim.AdamW(
        parameters,
        lr=learning_rate,
        betas=config.betas,
        eps=config.adam_eps,
        weight_decay=config.weight_decay,
    )


def moving_average(parameters: Iterable[nn.Parameter], config: TrainConfig) -> EMAModel:
    """Return diffusers' moving average with the config's settings, begun at ``parameters``."""
    if config.ema_warmup:
        return EMAModel(parameters, decay=config.ema_decay)
    # a least decay, and a first step that counts, leave nothing of the warm-up
    decay = config.ema_decay
    return EMAModel(parameters, decay=decay, min_decay=decay, update_after_step=-1)


def step_average(
    average: EMAModel, parameters: Iterable[nn.Parameter], version: int, config: TrainConfig
) -> None:
    """Move an average towards a version: after every ``ema_every`` of them, as FlowGRPO counts.

    Warmed up, the decay is min((1 + version) / (10 + version), ``ema_decay``).
    """
    if _moves_average(version, config):
        average.optimization_step = version  # the next step, version + 1, has that decay
        average.step(parameters)


def _moves_average(version: int, config: TrainConfig) -> bool:
    return (version + 1) % config.ema_every == 0


def _averaged(state: TrainState, weights: Weights, config: TrainConfig) -> Weights:
    """Return the moving average after this update."""
    version = state.version + 1
    if not config.ema_decay:
        return weights
    if not _moves_average(version, config):
        return state.ema
    average = moving_average([nn.Parameter(viewed(value)) for value in state.ema.values()], config)
    parameters = [nn.Parameter(torch.from_numpy(value)) for value in weights.values()]
    step_average(average, parameters, version, config)
    shadows = zip(state.ema, average.shadow_params, strict=True)
    return {name: value.numpy() for name, value in shadows}
