"""Call reward functions and check what they return.

A reward function maps (images [B, 3, H, W] in [0, 1], prompts) to a tensor [B], or to a dict of
tensors [B] whose key ``score`` is the reward and whose other keys are components to look at.
"""

import importlib
import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from digen_core.config import ConfigError

RewardFn = Callable[[Tensor, Sequence[str]], Tensor | Mapping[str, Tensor]]


class RewardError(RuntimeError):
    """A reward function failed or returned something unusable; the message names it."""


def import_reward(path: str) -> RewardFn:
    """Return the user's function ``module:function``.

    Raises:
        ConfigError: it cannot be imported.
    """
    module_name, _, function_name = path.partition(":")
    if not module_name or not function_name:
        raise ConfigError(
            f"rewards: {path!r} is neither a reward of digen nor of the form module:function"
        )
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise ConfigError(f"rewards: cannot import {module_name!r} of {path!r}: {error}") from error
    function = vars(module).get(function_name)
    if not callable(function):
        raise ConfigError(f"rewards: {module_name!r} has no function {function_name!r}")
    reward: RewardFn = function
    return reward


def score_images(
    functions: Mapping[str, RewardFn],
    weights: Mapping[str, float],
    images: Tensor,
    prompts: Sequence[str],
) -> dict[str, np.ndarray]:
    """Return float64 arrays [B]: ``reward``, the weighted sum, and ``<name>/<component>`` each.

    Raises:
        RewardError: a function raised, or returned NaN, Inf or the wrong number of values.
    """
    total = np.zeros(len(prompts))
    columns: dict[str, np.ndarray] = {}
    for name, function in functions.items():
        try:
            result = function(images, prompts)
        except Exception as error:
            raise RewardError(f"reward {name!r} raised {type(error).__name__}: {error}") from error
        components = result if isinstance(result, Mapping) else {"score": result}
        if "score" not in components:
            raise RewardError(f"reward {name!r} returned {sorted(components)} without 'score'")
        for component, values in components.items():
            columns[f"{name}/{component}"] = _checked(name, component, values, len(prompts))
        total += weights[name] * columns[f"{name}/score"]
    return {"reward": total, **columns}


def _checked(name: str, component: str, values: object, count: int) -> np.ndarray:
    """Return the values as float64 [count], or say what is wrong with them."""
    label = f"reward {name!r}" + ("" if component == "score" else f" ({component})")
    try:
        array = torch.as_tensor(values).detach().to("cpu", torch.float64).numpy()
    except (TypeError, ValueError, RuntimeError) as error:
        raise RewardError(f"{label} returned {type(values).__name__}, not numbers") from error
    if array.shape != (count,):
        raise RewardError(f"{label} returned shape {array.shape} for {count} images")
    bad = [index for index, value in enumerate(array) if not math.isfinite(value)]
    if bad:
        raise RewardError(f"{label} returned {array[bad[0]]} for image {bad[0]} of {count}")
    return array
