"""Rewards of the user's own: ``module:function``, or ``module:Class`` for what has to be loaded."""

import inspect
from collections.abc import Callable
from typing import Any

import torch

from digen_core.config.rewards.own import FunctionConfig
from digen_core.errors import ConfigError
from digen_core.inputs.importing import imported
from digen_core.rewards.scoring import RewardFn


def own_reward(config: FunctionConfig, device: torch.device) -> RewardFn:
    """Return the user's function, or an object of the user's class.

    Args:
        config: names it, and gives the arguments of the class.
        device: of the worker; an argument of the class too.

    Raises:
        ConfigError: it cannot be imported or made, or a function is given arguments.
    """
    found = import_reward(config.function)
    if not inspect.isclass(found):
        if config.options:
            raise ConfigError(
                f"rewards: {config.function!r} is a function, but has the options "
                f"{config.options}; only a class takes them"
            )
        return found
    make: Callable[..., Any] = found
    try:
        made = make(device=device, **config.options)
    except Exception as error:
        raise ConfigError(
            f"rewards: {config.function!r} with the options {config.options} raised "
            f"{type(error).__name__}: {error}"
        ) from error
    call_of(config.function, type(made))
    reward: RewardFn = made
    return reward


def call_of(path: str, found: type) -> object:
    """Return the ``__call__`` of the user's class, as the class or a base of it holds it.

    Of a torch module it is ``forward``, which its ``__call__`` hands all arguments to.

    Raises:
        ConfigError: there is none.
    """
    if issubclass(found, torch.nn.Module):
        return found.forward
    for base in found.__mro__:
        if "__call__" in vars(base):
            return vars(base)["__call__"]
    raise ConfigError(f"rewards: objects of {path!r} cannot be called; add __call__")


def import_reward(path: str) -> Callable[..., Any]:
    """Return what the user calls ``module:function``: a function or a class.

    Raises:
        ConfigError: it cannot be imported.
    """
    module_name, _, function_name = path.partition(":")
    if not module_name or not function_name:
        raise ConfigError(
            f"rewards: {path!r} is neither a reward of digen nor of the form module:function"
        )
    if module_name == "__main__":
        raise ConfigError(
            f"rewards: {path!r} is of the script or notebook that starts the run, which workers do "
            f"not import; put it into a file, such as my_rewards.py: my_rewards:{function_name}"
        )
    try:
        module = imported(module_name)
    except ImportError as error:
        raise ConfigError(
            f"rewards: cannot import {module_name!r} of {path!r}: {error}; it must be installed, "
            "or its folder be in PYTHONPATH"
        ) from error
    function = vars(module).get(function_name)
    if not callable(function):
        raise ConfigError(f"rewards: {module_name!r} has no function {function_name!r}")
    found: Callable[..., Any] = function
    return found
