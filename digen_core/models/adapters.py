"""Adapters that a run starts from: LoRA files of a family's pipeline, folded into its weights.

The sum of a linear layer and its adapter is a linear layer. Folded, it costs nothing at any step,
it is part of the base model that a KL divergence is taken to, and what is trained, be it an adapter
or all weights, is trained on top of it. Rollout workers and trainers fold the same numbers in the
same order, so replays stay exact.
"""

import re
import warnings
from collections.abc import Mapping
from typing import Any

from digen_core.config.model import AdapterConfig
from digen_core.errors import ConfigError
from digen_core.models.expert_names import PARTS


def fold_adapters(pipeline: Any, adapters: Mapping[str, AdapterConfig]) -> None:
    """Add adapters to the transformers of a pipeline, one after the other.

    Raises:
        ConfigError: one cannot be read, is for another model, or changes more than the transformer.
    """
    for name, adapter in adapters.items():
        label = f"model.adapters.{name} ({adapter.path})"
        part = PARTS[adapter.expert]
        transformer = getattr(pipeline, part, None)
        if transformer is None:
            raise ConfigError(
                f"{label} is for the expert for {adapter.expert} noise, but model.path has one "
                "transformer; leave expert out"
            )
        into = {} if part == PARTS["high"] else {f"load_into_{part}": True}
        source = {"weight_name": adapter.file, "revision": adapter.revision}
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                weights = pipeline.lora_state_dict(adapter.path, **source)
                _check_parts(label, weights)
                _check_layers(label, weights, transformer)
                pipeline.load_lora_weights(adapter.path, adapter_name=name, **source, **into)
                if name not in getattr(transformer, "peft_config", {}):
                    raise ConfigError(f"{label} holds no LoRA of this model's transformer")
                pipeline.fuse_lora([part], lora_scale=adapter.weight, adapter_names=[name])
        except ConfigError:
            raise
        except Exception as error:  # files of all kinds fail in all ways
            reason = " ".join(str(error).split()) or type(error).__name__
            raise ConfigError(f"{label} cannot be loaded: {reason[:300]}") from error
        pipeline.unload_lora_weights()
        transformer.requires_grad_(False)


def _check_parts(label: str, weights: Mapping[str, Any]) -> None:
    odd = sorted({key.split(".")[0] for key in weights} - {"transformer"})
    if odd:
        raise ConfigError(
            f"{label} changes {', '.join(odd)}, but post-training takes adapters of the "
            "transformer only; leave those parts out of the file"
        )


def _check_layers(label: str, weights: Mapping[str, Any], transformer: Any) -> None:
    """Check that the transformer has each layer of a LoRA, of its size: else it is another model's.

    diffusers leaves out what it finds no place for.
    """
    modules = dict(transformer.named_modules())
    for key, value in weights.items():
        found = re.fullmatch(r"transformer\.(.+)\.lora_([AB])\.weight", key)
        if found is None:
            continue
        name, matrix = found.groups()
        weight = getattr(modules.get(name), "weight", None)
        if weight is None:
            raise ConfigError(
                f"{label} is of another model: it has {name}, which the transformer of model.path "
                "has not"
            )
        own, side = (weight.shape[1], "inputs") if matrix == "A" else (weight.shape[0], "outputs")
        size = value.shape[1] if matrix == "A" else value.shape[0]
        if size != own:
            raise ConfigError(
                f"{label} is of another model: its {name} has {size} {side}, that of model.path "
                f"{own}"
            )
