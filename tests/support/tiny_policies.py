"""Policies on the tiny FLUX of the fixture ``tiny_flux``, for tests of what works with a policy."""

import copy
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from digen_core.config.model import ModelConfig
from digen_core.config.train import LoraConfig
from digen_core.models.families import adapter_of
from digen_core.models.policy import ALL_PARTS, Part, Policy
from digen_core.models.trainable import make_trainable, trainable_parameters
from digen_core.transport.arrays import to_array

LORA = LoraConfig(rank=4, alpha=8)

TINY = {"height": 32, "width": 32, "num_frames": 1, "max_sequence_length": 12}
"""What the tests' samples are like if they say nothing else: a family's own would take minutes."""


_pipelines: dict[tuple[object, ...], Any] = {}


def load(
    path: str, dtype: str = "float64", parts: frozenset[Part] = ALL_PARTS, **model: Any
) -> Policy:
    """Load a policy, without anything to train; a folder's files are read once, if they stay.

    A copy of what was read takes a third of the time.
    """
    config = ModelConfig(**{"path": str(path), "dtype": dtype, "device": "cpu", **TINY, **model})
    adapter = adapter_of(config.family)
    files = tuple(sorted((str(own), own.stat().st_mtime_ns) for own in Path(path).rglob("*")))
    beside = config.model_dump_json(exclude={*TINY, "sizes", "guidance_scale", "negative_prompt"})
    read = adapter.load_pipeline

    def copied(config: ModelConfig, parts: frozenset[Part], *place: Any) -> Any:
        key = (files, beside, parts, *place)
        if key not in _pipelines:
            _pipelines[key] = read(config, parts, *place)
        return copy.deepcopy(_pipelines[key])

    with patch.object(adapter, "load_pipeline", copied):
        return adapter.load(config, parts)


def load_trainable(
    path: str,
    dtype: str = "float64",
    lora: LoraConfig | None = LORA,
    *,
    keep_reference: bool = False,
    **model: Any,
) -> Policy:
    """Load a policy with adapters, or with all its weights open for training."""
    policy = load(path, dtype, **model)
    make_trainable(policy, lora, keep_reference=keep_reference)
    return policy


def moved_weights(policy: Policy, seed: int = 0, scale: float = 0.1) -> dict[str, np.ndarray]:
    """Return the policy's trained weights plus noise: masters that training might have made."""
    rng = np.random.default_rng(seed)
    return {
        name: (value := to_array(parameter))
        + (scale * rng.standard_normal(value.shape)).astype(value.dtype)
        for name, parameter in trainable_parameters(policy).items()
    }
