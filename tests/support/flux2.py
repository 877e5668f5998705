"""Tiny FLUX.2 pipelines beside that of the family: dev, and klein distilled."""

from pathlib import Path

import torch
from diffusers import DiffusionPipeline, Flux2KleinPipeline, Flux2Pipeline
from diffusers.pipelines.flux2.system_messages import SYSTEM_MESSAGE
from transformers import Mistral3Config, Mistral3ForConditionalGeneration, PreTrainedTokenizerFast

from digen_core.models.families.flux2 import Flux2Policy
from digen_core.models.tiny.sizes import SIZES
from digen_core.models.tiny.tokenizers import llama_tokenizer

CHAT = (
    "{{ bos_token }}{% for message in messages %}[{{ message.role }}]"
    "{% for part in message.content %}{{ part.text }}{% endfor %}{% endfor %}"
)
BEFORE_IN_DEV = 1 + len("[system]") + len(SYSTEM_MESSAGE) + len("[user]")
"""Tokens before a prompt."""


def dev_tokenizer() -> PreTrainedTokenizerFast:
    """Return what stands for dev's processor, which takes images, too, and torchvision for them."""
    tokenizer = llama_tokenizer()
    tokenizer.chat_template = CHAT
    tokenizer.padding_side = "left"
    return tokenizer


def write_dev(klein: str, folder: Path) -> str:
    """Write a tiny dev with the VAE and schedule of a tiny klein; return its folder."""
    like, tokenizer = DiffusionPipeline.from_pretrained(klein), dev_tokenizer()
    torch.manual_seed(0)
    text = {
        "vocab_size": len(tokenizer),
        "hidden_size": like.text_encoder.config.hidden_size,
        "intermediate_size": 16,
        "num_hidden_layers": 31,  # states behind the 10th, 20th and 30th are read
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 4,
        "model_type": "mistral",
    }
    vision = {
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "head_dim": 8,
        "model_type": "pixtral",
    }
    config = Mistral3Config(text_config=text, vision_config=vision)
    Flux2Pipeline(
        scheduler=like.scheduler,
        vae=like.vae,
        text_encoder=Mistral3ForConditionalGeneration(config).eval(),
        tokenizer=tokenizer,
        transformer=Flux2Policy.tiny_transformer(SIZES["tiny"], guidance_embeds=True),
    ).save_pretrained(folder)
    return str(folder)


def write_distilled(klein: str, folder: Path) -> str:
    """Write the same tiny klein as one that was distilled; return its folder."""
    pipeline = Flux2KleinPipeline.from_pretrained(klein)
    pipeline.register_to_config(is_distilled=True)
    pipeline.save_pretrained(folder)
    return str(folder)
