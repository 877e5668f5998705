"""A tiny pipeline of each family: the classes of the published models, random float32 weights.

Latents of 4 channels and 1/8 of the image's sides; built offline in seconds. The transformer has
one of two sizes (`SIZES`): one to try things with, 1 to 3 MB on disk, and one whose steps cost
far more than a task does, as those of real models do.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import torch
from diffusers import (
    FlowMatchEulerDiscreteScheduler,
    FluxPipeline,
    FluxTransformer2DModel,
    HunyuanVideoPipeline,
    HunyuanVideoTransformer3DModel,
    QwenImagePipeline,
    QwenImageTransformer2DModel,
    SD3Transformer2DModel,
    StableDiffusion3Pipeline,
    UniPCMultistepScheduler,
    WanPipeline,
    WanTransformer3DModel,
)

from digen_core.config.model import Family, TinySize
from digen_core.models.tiny import parts, tokenizers

_LATENT_CHANNELS: Final = 4
_TEXT_WIDTH: Final = 32
_VAE_CHANNELS: Final = (8, 8, 8, 8)


@dataclass(frozen=True, slots=True)
class TransformerSize:
    """How large a transformer is."""

    heads: int
    head: int  # channels of each
    blocks: int  # of each kind
    axes: tuple[int, int, int]  # of the rotary embedding of a head; sum up to its channels

    @property
    def width(self) -> int:
        """Channels of a token."""
        return self.heads * self.head

    @property
    def settings(self) -> dict[str, int]:
        """As the classes of all families call them."""
        return {
            "num_attention_heads": self.heads,
            "attention_head_dim": self.head,
            "num_layers": self.blocks,
        }


SIZES: Final[dict[TinySize, TransformerSize]] = {
    "tiny": TransformerSize(heads=4, head=16, blocks=2, axes=(4, 4, 8)),
    "medium": TransformerSize(heads=6, head=64, blocks=6, axes=(16, 24, 24)),
}


def build_tiny(family: Family, *, size: TinySize = "tiny", seed: int = 0) -> Any:
    """Return a tiny pipeline with random weights.

    Args:
        family: whose classes, schedule and conditioning it has.
        size: of its transformer.
        seed: of the weights; the global random state is left as it was.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return _BUILDERS[family](SIZES[size])


def _flux(size: TransformerSize) -> FluxPipeline:
    clip_tokenizer, t5_tokenizer = tokenizers.clip_tokenizer(), tokenizers.t5_tokenizer()
    return FluxPipeline(
        scheduler=FlowMatchEulerDiscreteScheduler(shift=3.0, use_dynamic_shifting=True),
        vae=parts.image_vae(
            _VAE_CHANNELS, _LATENT_CHANNELS, scaling_factor=0.3611, shift_factor=0.1159
        ),
        text_encoder=parts.clip(clip_tokenizer, _TEXT_WIDTH),
        tokenizer=clip_tokenizer,
        text_encoder_2=parts.t5(t5_tokenizer, _TEXT_WIDTH),
        tokenizer_2=t5_tokenizer,
        transformer=FluxTransformer2DModel(
            **size.settings,
            in_channels=4 * _LATENT_CHANNELS,
            num_single_layers=size.blocks,
            joint_attention_dim=_TEXT_WIDTH,
            pooled_projection_dim=_TEXT_WIDTH,
            guidance_embeds=True,
            axes_dims_rope=size.axes,
        ),
    )


def _sd3(size: TransformerSize) -> StableDiffusion3Pipeline:
    clip_tokenizer, t5_tokenizer = tokenizers.clip_tokenizer(), tokenizers.t5_tokenizer()
    both = 2 * _TEXT_WIDTH  # the two CLIPs side by side, as wide as T5
    return StableDiffusion3Pipeline(
        scheduler=FlowMatchEulerDiscreteScheduler(shift=3.0),
        vae=parts.image_vae(
            _VAE_CHANNELS, _LATENT_CHANNELS, scaling_factor=1.5305, shift_factor=0.0609
        ),
        text_encoder=parts.clip(clip_tokenizer, _TEXT_WIDTH, projected=True),
        tokenizer=clip_tokenizer,
        text_encoder_2=parts.clip(clip_tokenizer, _TEXT_WIDTH, projected=True),
        tokenizer_2=clip_tokenizer,
        text_encoder_3=parts.t5(t5_tokenizer, both),
        tokenizer_3=t5_tokenizer,
        transformer=SD3Transformer2DModel(
            **size.settings,
            sample_size=8,
            in_channels=_LATENT_CHANNELS,
            out_channels=_LATENT_CHANNELS,
            joint_attention_dim=both,
            caption_projection_dim=size.width,
            pooled_projection_dim=both,
            pos_embed_max_size=16,
            dual_attention_layers=(0,),
            qk_norm="rms_norm",
        ),
    )


def _qwen_image(size: TransformerSize) -> QwenImagePipeline:
    tokenizer = tokenizers.qwen_tokenizer()
    return QwenImagePipeline(
        scheduler=FlowMatchEulerDiscreteScheduler(
            use_dynamic_shifting=True,
            base_shift=0.5,
            max_shift=0.9,
            base_image_seq_len=256,
            max_image_seq_len=8192,
            shift_terminal=0.02,
        ),
        vae=parts.qwen_vae(_LATENT_CHANNELS),
        text_encoder=parts.qwen_vl(tokenizer, _TEXT_WIDTH),
        tokenizer=tokenizer,
        transformer=QwenImageTransformer2DModel(
            **size.settings,
            in_channels=4 * _LATENT_CHANNELS,
            out_channels=_LATENT_CHANNELS,
            joint_attention_dim=_TEXT_WIDTH,
            axes_dims_rope=size.axes,
        ),
    )


def _wan(size: TransformerSize) -> WanPipeline:
    tokenizer = tokenizers.t5_tokenizer()
    return WanPipeline(
        scheduler=UniPCMultistepScheduler(
            prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=3.0
        ),
        vae=parts.wan_vae(_LATENT_CHANNELS),
        text_encoder=parts.umt5(tokenizer, _TEXT_WIDTH),
        tokenizer=tokenizer,
        transformer=WanTransformer3DModel(
            **size.settings,
            in_channels=_LATENT_CHANNELS,
            out_channels=_LATENT_CHANNELS,
            text_dim=_TEXT_WIDTH,
            freq_dim=64,
            ffn_dim=2 * size.width,
        ),
    )


def _hunyuan_video(size: TransformerSize) -> HunyuanVideoPipeline:
    clip_tokenizer, llama_tokenizer = tokenizers.clip_tokenizer(), tokenizers.llama_tokenizer()
    return HunyuanVideoPipeline(
        scheduler=FlowMatchEulerDiscreteScheduler(shift=7.0),
        vae=parts.hunyuan_vae(_LATENT_CHANNELS),
        text_encoder=parts.llama(llama_tokenizer, _TEXT_WIDTH),
        tokenizer=llama_tokenizer,
        text_encoder_2=parts.clip(clip_tokenizer, _TEXT_WIDTH),
        tokenizer_2=clip_tokenizer,
        transformer=HunyuanVideoTransformer3DModel(
            **size.settings,
            in_channels=_LATENT_CHANNELS,
            out_channels=_LATENT_CHANNELS,
            num_single_layers=size.blocks,
            num_refiner_layers=1,
            text_embed_dim=_TEXT_WIDTH,
            pooled_projection_dim=_TEXT_WIDTH,
            rope_axes_dim=size.axes,
        ),
    )


_BUILDERS: Final[dict[Family, Callable[[TransformerSize], Any]]] = {
    "flux": _flux,
    "sd3": _sd3,
    "qwen_image": _qwen_image,
    "wan": _wan,
    "hunyuan_video": _hunyuan_video,
}
