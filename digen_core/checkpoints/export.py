"""Save what was trained in the form that stock diffusers loads.

LoRA: ``pipeline.load_lora_weights(folder)``.
All weights: ``from_pretrained(folder)`` of the transformer's class, such as FluxTransformer2DModel.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from peft.utils import get_peft_model_state_dict
from torch.distributed.fsdp import FSDPModule

from digen_core.gang.sharding import held
from digen_core.models.policy import Policy
from digen_core.transport.arrays import viewed


def save_for_diffusers(
    policy: Policy, folder: Path, weights: Mapping[str, np.ndarray] | None = None
) -> None:
    """Write the active adapter with its alpha, or the whole transformer, into ``folder``.

    Args:
        policy: with what was trained.
        folder: to write to.
        weights: masters of all parameters, to write in place of the transformer's own; a member of
            a gang that shards them holds only some rows of those.
    """
    transformer = policy.transformer
    if not getattr(transformer, "peft_config", None):
        own = transformer if weights is None else _with_weights(transformer, weights)
        own.save_pretrained(folder)
        return
    (active,) = transformer.active_adapters()
    # Without the metadata diffusers drops alpha, and loads the adapters with another strength.
    policy.pipeline.save_lora_weights(
        folder,
        transformer_lora_layers=get_peft_model_state_dict(transformer, adapter_name=active),
        transformer_lora_adapter_metadata=transformer.peft_config[active].to_dict(),
    )


def _with_weights(transformer: Any, weights: Mapping[str, np.ndarray]) -> Any:
    """Return a transformer like another one on the host, with weights in the other's dtypes."""
    # FSDP2 has made a class of its own of the one that diffusers knows.
    kind: Any = next(kind for kind in type(transformer).__mro__ if not issubclass(kind, FSDPModule))
    with torch.device("meta"):
        plain = kind.from_config(transformer.config)
    plain.load_state_dict(
        {
            name: viewed(weights[name]).to(value.dtype) if name in weights else held(value)
            for name, value in transformer.state_dict().items()
        },
        assign=True,
    )
    return plain
