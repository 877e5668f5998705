"""Models of few steps that are told the noise level at which a step ends, too (arXiv:2505.13447).

What they return is the mean velocity of the way there, not the velocity where it begins. So the
levels have to be named, and nothing else is to be asked of them than that way.

Importing this module must not import torch.
"""

from collections.abc import Mapping
from typing import Any

from digen_core.config.families import FAMILIES
from digen_core.config.model import ModelConfig
from digen_core.config.run import RunConfig
from digen_core.errors import ConfigError


def is_told_ends(model: ModelConfig, transformer: Mapping[str, Any]) -> bool:
    """Return whether a transformer is told where steps end, from its config."""
    return bool(transformer.get(FAMILIES[model.family].told_ends))


def check_named(model: ModelConfig, transformer: Mapping[str, Any]) -> None:
    """Check that a model which is told where steps end has these levels named.

    Raises:
        ConfigError: they are not.
    """
    if is_told_ends(model, transformer) and not model.sigmas:
        raise ConfigError(
            f"model.path {model.path} is told the noise level at which a step ends, too; name "
            "those of its steps as model.sigmas"
        )


def check_few_steps(config: RunConfig, transformer: Mapping[str, Any]) -> None:
    """Check what a run asks of a model that is told where steps end, from the model's config.

    Raises:
        ConfigError: the levels are not named, or it is asked for other velocities than those means.
    """
    if not is_told_ends(config.model, transformer):
        return
    check_named(config.model, transformer)
    what = f"model.path {config.model.path} returns the mean velocity of a step"
    if config.algorithm.trains_clean:
        raise ConfigError(
            f"{what}, but algorithm.type {config.algorithm.type} compares velocities at one noise "
            "level; use one that learns from sampled steps, such as flow_grpo"
        )
    if config.rollout.solver != "euler":
        raise ConfigError(
            f"{what}, but rollout.solver {config.rollout.solver} goes by velocities at one noise "
            "level; use 'euler'"
        )
