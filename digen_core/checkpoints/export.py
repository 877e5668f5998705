"""Save what was trained in the form that stock diffusers loads.

LoRA: ``pipeline.load_lora_weights(folder)``.
All weights: ``from_pretrained(folder)`` of the transformer's class, such as FluxTransformer2DModel.
"""

from pathlib import Path

from peft.utils import get_peft_model_state_dict

from digen_core.models.policy import Policy


def save_for_diffusers(policy: Policy, folder: Path) -> None:
    """Write the active adapter with its alpha, or the whole transformer, into ``folder``."""
    transformer = policy.transformer
    if not getattr(transformer, "peft_config", None):
        transformer.save_pretrained(folder)
        return
    (active,) = transformer.active_adapters()
    # Without the metadata diffusers drops alpha, and loads the adapters with another strength.
    policy.pipeline.save_lora_weights(
        folder,
        transformer_lora_layers=get_peft_model_state_dict(transformer, adapter_name=active),
        transformer_lora_adapter_metadata=transformer.peft_config[active].to_dict(),
    )
