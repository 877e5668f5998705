"""The optimizer step as a function: (state of version k, gradient) -> state of version k + 1.

The maths is torch's AdamW and clip_grad_norm_ and diffusers' EMAModel; only where their state lives
is ours, because a lost worker is repaired by computing a value again.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from diffusers.training_utils import EMAModel
from torch import nn

from digen_core.config.train import TrainConfig
from digen_core.transport.arrays import Weights, rounded
from digen_core.transport.fingerprint import content_hash


@dataclass(frozen=True, slots=True)
class TrainState:
    """All that makes the next version: master weights, Adam's moments and the moving average."""

    version: int
    weights: Weights
    weights_hash: str
    exp_avg: Weights
    exp_avg_sq: Weights
    ema: Weights  # equal to ``weights`` while ema_decay is 0
    old: Weights | None = None  # what generates, if that lags behind ``weights``


@dataclass(frozen=True, slots=True)
class PolicyVersion:
    """What a policy needs of a state, in the dtypes of its parameters: so it is pushed."""

    version: int
    weights: Weights
    hash: str  # of what is here; the state's is of the masters
    old: Weights | None = None  # what generates, if not ``weights``

    def content_hash(self) -> str:
        """Return the hash of what this holds, to compare with the one it came with."""
        return version_hash(self.weights, self.old)


def version_hash(weights: Weights, old: Weights | None) -> str:
    """Return the hash of a version's content: of masters it names the version."""
    return content_hash({**weights, **{f"old/{name}": v for name, v in (old or {}).items()}})


def published(state: TrainState, dtypes: Mapping[str, torch.dtype]) -> PolicyVersion:
    """Return the version that generates and trains next.

    Args:
        state: of the version.
        dtypes: of the parameters that will hold it, by name.

    Raises:
        FloatingPointError: a weight is NaN, or infinite in its dtype.
    """
    return _in_dtypes(state.version, state.weights, state.old, dtypes)


def averaged(state: TrainState, dtypes: Mapping[str, torch.dtype]) -> PolicyVersion:
    """Return the moving average of the weights, for evaluation; else as `published`."""
    return _in_dtypes(state.version, state.ema, None, dtypes)


def _in_dtypes(
    version: int, weights: Weights, old: Weights | None, dtypes: Mapping[str, torch.dtype]
) -> PolicyVersion:
    weights = rounded(weights, dtypes)
    old = None if old is None else rounded(old, dtypes)
    return PolicyVersion(version, weights, version_hash(weights, old), old)


def initial_state(weights: Weights, *, keeps_old: bool = False) -> TrainState:
    """Return version 0; with ``keeps_old``, an old policy of the same weights beside it."""
    zeros = {name: np.zeros_like(value) for name, value in weights.items()}
    old = weights if keeps_old else None
    return TrainState(0, weights, version_hash(weights, old), zeros, zeros, weights, old)


def learning_rate_of(config: TrainConfig, update: int, num_updates: int) -> float:
    """Return the learning rate of an update, counted from 0, of a run of ``num_updates``."""
    if config.learning_rate_decay == "none":
        return config.learning_rate
    return config.learning_rate * (1 + math.cos(math.pi * update / num_updates)) / 2


def optimizer_step(
    state: TrainState,
    gradient: Mapping[str, np.ndarray],
    config: TrainConfig,
    *,
    learning_rate: float,
    old_decay: float = 0.0,
) -> tuple[TrainState, float]:
    """Return the next version and the gradient's norm before clipping.

    Args:
        state: of the current version.
        gradient: by parameter name; a parameter it does not name is left as it is.
        config: AdamW's, clipping's and the average's settings.
        learning_rate: of this update.
        old_decay: share of the old policy's weights that stays, if the state has one.

    Raises:
        FloatingPointError: the gradient's norm is NaN or infinite.
    """
    parameters = {}
    for name, value in state.weights.items():
        parameters[name] = nn.Parameter(torch.from_numpy(value.copy()))
        if name in gradient:
            parameters[name].grad = torch.from_numpy(np.array(gradient[name]))
    norm = float(nn.utils.clip_grad_norm_(parameters.values(), config.max_grad_norm))
    if not np.isfinite(norm):
        raise FloatingPointError(f"the gradient's norm is {norm} at version {state.version}.")
    optimizer = adamw(list(parameters.values()), config, learning_rate=learning_rate)
    for name, parameter in parameters.items():
        optimizer.state[parameter] = {
            "step": torch.tensor(float(state.version)),
            "exp_avg": torch.from_numpy(state.exp_avg[name].copy()),
            "exp_avg_sq": torch.from_numpy(state.exp_avg_sq[name].copy()),
        }
    optimizer.step()
    moments = {name: optimizer.state[parameter] for name, parameter in parameters.items()}
    weights = {name: parameter.detach().numpy() for name, parameter in parameters.items()}
    old = None if state.old is None else mixed(state.old, weights, old_decay)
    next_state = TrainState(
        version=state.version + 1,
        weights=weights,
        weights_hash=version_hash(weights, old),
        exp_avg={name: moment["exp_avg"].numpy() for name, moment in moments.items()},
        exp_avg_sq={name: moment["exp_avg_sq"].numpy() for name, moment in moments.items()},
        ema=_averaged(state, weights, config),
        old=old,
    )
    return next_state, norm


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
    average = moving_average(
        [nn.Parameter(torch.from_numpy(value.copy())) for value in state.ema.values()], config
    )
    parameters = [nn.Parameter(torch.from_numpy(value)) for value in weights.values()]
    step_average(average, parameters, version, config)
    shadows = zip(state.ema, average.shadow_params, strict=True)
    return {name: value.numpy() for name, value in shadows}
