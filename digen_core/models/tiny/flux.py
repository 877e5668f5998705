"""The FLUX pipeline of the world "shapes", small enough to be pretrained on a CPU.

Same classes as FLUX.1-schnell (no guidance embedding), built offline with random weights. An
image [3, 32, 32] becomes a latent [4, 8, 8], packed 2x2 into 16 image tokens of 16 channels;
both tokenizers take whole words, so a prompt fits ``PROMPT_TOKENS`` tokens.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Final

import torch
from diffusers import FlowMatchEulerDiscreteScheduler, FluxPipeline, FluxTransformer2DModel
from torch import nn
from transformers import CLIPTokenizer, T5Tokenizer

from digen_core.models.tiny import encoders, vaes
from digen_core.worlds.shapes import all_prompts

PROMPT_TOKENS: Final = 12
"""The ``max_sequence_length`` to encode prompts with; padding is not masked, so it matters."""
LATENT_CHANNELS: Final = 4

_HEADS: Final = 4
_LETTERS: Final = "abcdefghijklmnopqrstuvwxyz"
_BOS: Final = "<|startoftext|>"
_EOS: Final = "<|endoftext|>"


def build_tiny_flux(
    *,
    width: int = 96,
    num_layers: int = 2,
    num_single_layers: int = 2,
    text_width: int = 64,
    vae_channels: tuple[int, int, int] = (8, 16, 32),
    shift: float = 1.0,
    prompts: Sequence[str] = (),
    seed: int = 0,
) -> FluxPipeline:
    """Return a FLUX pipeline with random float32 weights.

    Args:
        width: of the transformer, a multiple of 32 (four heads with even rotary axes).
        num_layers: double-stream blocks.
        num_single_layers: single-stream blocks.
        text_width: of both text encoders.
        vae_channels: of the three resolutions of the VAE, multiples of 8.
        shift: of the scheduler's sigmas, static.
        prompts: whose words the tokenizers know; none: those of the world "shapes".
        seed: of the weights; the global random state is left as it was.
    """
    if width % (8 * _HEADS):
        raise ValueError(f"width ({width}) is not a multiple of {8 * _HEADS}")
    words = sorted({word for prompt in prompts or all_prompts() for word in prompt.split()})
    tokenizer, tokenizer_2 = _clip_tokenizer(words), _t5_tokenizer(words)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return FluxPipeline(
            scheduler=FlowMatchEulerDiscreteScheduler(shift=shift, use_dynamic_shifting=False),
            vae=vaes.image_vae(vae_channels, LATENT_CHANNELS, scaling_factor=1.0, shift_factor=0.0),
            text_encoder=encoders.clip(tokenizer, text_width),
            tokenizer=tokenizer,
            text_encoder_2=_t5(tokenizer_2, text_width),
            tokenizer_2=tokenizer_2,
            transformer=_transformer(width, num_layers, num_single_layers, text_width),
        )


def _transformer(width: int, layers: int, single_layers: int, text_width: int) -> Any:
    head = width // _HEADS
    # Two thirds of a head rotate with the position (y, x); the constant first axis keeps the rest.
    spatial = head // 3 // 2 * 2
    return FluxTransformer2DModel(
        patch_size=1,
        in_channels=4 * LATENT_CHANNELS,
        num_layers=layers,
        num_single_layers=single_layers,
        attention_head_dim=head,
        num_attention_heads=_HEADS,
        joint_attention_dim=text_width,
        pooled_projection_dim=text_width,
        guidance_embeds=False,
        axes_dims_rope=(head - 2 * spatial, spatial, spatial),
    ).eval()


def _t5(tokenizer: T5Tokenizer, width: int) -> Any:
    encoder = encoders.t5(tokenizer, width)
    # The bias is all that tells the order of the words; at T5's own initial scale (0.1 here) it
    # is so faint that pretraining learns "left of" from "right of" only very late.
    bias = encoder.encoder.block[0].layer[0].SelfAttention.relative_attention_bias.weight
    nn.init.normal_(bias, std=1.0)
    return encoder


def _t5_tokenizer(words: Iterable[str]) -> T5Tokenizer:
    """Return a unigram tokenizer whose likeliest pieces are the words; letters spell the rest."""
    pieces = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("▁", -20.0)]
    pieces += [(letter, -20.0) for letter in _LETTERS]
    pieces += [("▁" + word, -1.0) for word in words]
    return T5Tokenizer(vocab=pieces, extra_ids=0, model_max_length=PROMPT_TOKENS)


def _clip_tokenizer(words: Iterable[str]) -> CLIPTokenizer:
    """Return a byte-pair tokenizer with merges that build up each word, from its end.

    Every merge takes in the end-of-word mark, so no merge of one word can act inside another.
    """
    merges: dict[tuple[str, str], None] = {}
    for word in words:
        suffix = word[-1] + "</w>"
        for letter in reversed(word[:-1]):
            merges[letter, suffix] = None
            suffix = letter + suffix
    letters = [*_LETTERS, *(letter + "</w>" for letter in _LETTERS)]
    pieces = dict.fromkeys([*letters, *(a + b for a, b in merges), _BOS, _EOS])
    return CLIPTokenizer(
        vocab={piece: index for index, piece in enumerate(pieces)},
        merges=list(merges),
        model_max_length=PROMPT_TOKENS,
    )
