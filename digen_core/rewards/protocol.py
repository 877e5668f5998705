"""What an evaluation keeps for comparisons: samples' scores, and how they were made and judged."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from digen_core.config.rewards import RewardConfig, relative, that_see
from digen_core.config.rewards.base import OF_ASKING
from digen_core.config.run import RunConfig
from digen_core.rewards.failures import FAILED, known

Array = NDArray[np.float64]

_NOT_OF_SAMPLES: Final = {
    *("device", "compile", "offload", "vae_slicing"),
    *("sizes", "train_guidance_scale", "reference_guidance_scale", "train_experts"),
}
"""Keys of a model that say where it computes, or are of training."""

_NOT_OF_SCORES: Final = {"weight", *OF_ASKING}
"""Keys of a reward that say how it is asked, or what its score is worth."""


def sample_scores(
    columns: Mapping[str, Array], rewards: Mapping[str, RewardConfig], size: int
) -> dict[str, list[list[float | None]]]:
    """Return by component what each sample has that can be compared with other evaluations'.

    What relative rewards say is of the samples of one group, so it is left out, and so are the
    marks of failures. ``reward`` lacks the samples that lack a score in it.

    Args:
        columns: [prompts * size] by name, as ``settle`` returns them.
        rewards: of the config, by name.
        size: samples of a prompt.

    Returns:
        [prompts][size] by name; None in the place of a score that failed.
    """
    groups = set(relative(rewards))
    found: dict[str, list[list[float | None]]] = {}
    for column, values in columns.items():
        name, _, part = column.partition("/")
        if name in groups or part == FAILED:
            continue
        summed = [f"{own}/score" for own in _weighed(rewards)] if column == "reward" else [column]
        there = np.all([known(columns, own) for own in summed], axis=0)
        scores = [float(v) if is_there else None for v, is_there in zip(values, there, strict=True)]
        found[column] = [scores[start : start + size] for start in range(0, len(scores), size)]
    return found


def sampled_as(config: RunConfig) -> str:
    """Return 16 hex digits that name how samples are made of prompts, their noise included."""
    model = config.model.model_dump(mode="json", exclude=_NOT_OF_SAMPLES)
    return _digest([config.seed, config.evaluation_steps, model])


def judged_by(rewards: Mapping[str, RewardConfig], column: str) -> str:
    """Return 16 hex digits that name what makes the values of a component, or of ``reward``."""
    if column != "reward":
        return _digest(_settings(rewards[column.partition("/")[0]]))
    weighed = _weighed(rewards)
    return _digest({name: [own.weight, _settings(own)] for name, own in weighed.items()})


def _weighed(rewards: Mapping[str, RewardConfig]) -> dict[str, RewardConfig]:
    """Return the rewards that ``reward`` is the sum of in an evaluation."""
    return {name: own for name, own in that_see(rewards, "samples").items() if own.weight}


def _settings(reward: RewardConfig) -> dict[str, Any]:
    return reward.model_dump(mode="json", exclude=_NOT_OF_SCORES)


def _digest(tree: Any) -> str:
    return hashlib.blake2b(json.dumps(tree, sort_keys=True).encode(), digest_size=8).hexdigest()
