"""Adapters that a run starts from: LoRA files of a family's pipeline, folded into its weights.

The sum of a linear layer and its adapter is a linear layer. Folded, it costs nothing at any step,
it is part of the base model that a KL divergence is taken to, and what is trained, be it an adapter
or all weights, is trained on top of it. Rollout workers and trainers fold the same numbers in the
same order, so replays stay exact.
"""

import warnings
from collections.abc import Mapping
from typing import Any

from digen_core.config import ConfigError
from digen_core.model_config import AdapterConfig


def fold_adapters(pipeline: Any, adapters: Mapping[str, AdapterConfig]) -> None:
    """Add adapters to the transformer of a pipeline, one after the other.

    Raises:
        ConfigError: one cannot be read, is for another model, or changes more than the transformer.
    """
    for name, adapter in adapters.items():
        label = f"model.adapters.{name} ({adapter.path})"
        source = {"weight_name": adapter.file, "revision": adapter.revision}
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                _check_parts(label, pipeline.lora_state_dict(adapter.path, **source))
                pipeline.load_lora_weights(adapter.path, adapter_name=name, **source)
                if name not in getattr(pipeline.transformer, "peft_config", {}):
                    raise ConfigError(f"{label} holds no LoRA of this model's transformer")
                pipeline.fuse_lora(["transformer"], lora_scale=adapter.weight, adapter_names=[name])
        except ConfigError:
            raise
        except Exception as error:  # files of all kinds fail in all ways
            reason = " ".join(str(error).split())
            raise ConfigError(f"{label} cannot be loaded: {reason[:300]}") from error
        pipeline.unload_lora_weights()
    pipeline.transformer.requires_grad_(False)


def _check_parts(label: str, weights: Mapping[str, Any]) -> None:
    odd = sorted({key.split(".")[0] for key in weights} - {"transformer"})
    if odd:
        raise ConfigError(
            f"{label} changes {', '.join(odd)}, but post-training takes adapters of the "
            "transformer only; leave those parts out of the file"
        )
