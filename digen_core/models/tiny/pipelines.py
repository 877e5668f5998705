"""A tiny pipeline of each family: the classes of the published models, random float32 weights.

Four heads of 16 channels, two blocks of each kind, latents of 4 channels and 1/8 of the image's
sides; built offline in a second, 1 to 3 MB on disk.
"""

from collections.abc import Callable
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

from digen_core.model_config import Family
from digen_core.models.tiny import parts, tokenizers

_LATENT_CHANNELS: Final = 4
_TEXT_WIDTH: Final = 32
_HEADS: Final = {"num_attention_heads": 4, "attention_head_dim": 16}
_ROTARY_AXES: Final = (4, 4, 8)  # of a head; sums up to it
_VAE_CHANNELS: Final = (8, 8, 8, 8)


def build_tiny(family: Family, *, seed: int = 0) -> Any:
    """Return a tiny pipeline with random weights.

    Args:
        family: whose classes, schedule and conditioning it has.
        seed: of the weights; the global random state is left as it was.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return _BUILDERS[family]()


def _flux() -> FluxPipeline:
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
            **_HEADS,
            in_channels=4 * _LATENT_CHANNELS,
            num_layers=2,
            num_single_layers=2,
            joint_attention_dim=_TEXT_WIDTH,
            pooled_projection_dim=_TEXT_WIDTH,
            guidance_embeds=True,
            axes_dims_rope=_ROTARY_AXES,
        ),
    )


def _sd3() -> StableDiffusion3Pipeline:
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
            **_HEADS,
            sample_size=8,
            in_channels=_LATENT_CHANNELS,
            out_channels=_LATENT_CHANNELS,
            num_layers=2,
            joint_attention_dim=both,
            caption_projection_dim=64,  # heads x head
            pooled_projection_dim=both,
            pos_embed_max_size=16,
            dual_attention_layers=(0,),
            qk_norm="rms_norm",
        ),
    )


def _qwen_image() -> QwenImagePipeline:
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
            **_HEADS,
            in_channels=4 * _LATENT_CHANNELS,
            out_channels=_LATENT_CHANNELS,
            num_layers=2,
            joint_attention_dim=_TEXT_WIDTH,
            axes_dims_rope=_ROTARY_AXES,
        ),
    )


def _wan() -> WanPipeline:
    tokenizer = tokenizers.t5_tokenizer()
    return WanPipeline(
        scheduler=UniPCMultistepScheduler(
            prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=3.0
        ),
        vae=parts.wan_vae(_LATENT_CHANNELS),
        text_encoder=parts.umt5(tokenizer, _TEXT_WIDTH),
        tokenizer=tokenizer,
        transformer=WanTransformer3DModel(
            **_HEADS,
            in_channels=_LATENT_CHANNELS,
            out_channels=_LATENT_CHANNELS,
            text_dim=_TEXT_WIDTH,
            freq_dim=64,
            ffn_dim=128,
            num_layers=2,
        ),
    )


def _hunyuan_video() -> HunyuanVideoPipeline:
    clip_tokenizer, llama_tokenizer = tokenizers.clip_tokenizer(), tokenizers.llama_tokenizer()
    return HunyuanVideoPipeline(
        scheduler=FlowMatchEulerDiscreteScheduler(shift=7.0),
        vae=parts.hunyuan_vae(_LATENT_CHANNELS),
        text_encoder=parts.llama(llama_tokenizer, _TEXT_WIDTH),
        tokenizer=llama_tokenizer,
        text_encoder_2=parts.clip(clip_tokenizer, _TEXT_WIDTH),
        tokenizer_2=clip_tokenizer,
        transformer=HunyuanVideoTransformer3DModel(
            **_HEADS,
            in_channels=_LATENT_CHANNELS,
            out_channels=_LATENT_CHANNELS,
            num_layers=2,
            num_single_layers=2,
            num_refiner_layers=1,
            text_embed_dim=_TEXT_WIDTH,
            pooled_projection_dim=_TEXT_WIDTH,
            rope_axes_dim=_ROTARY_AXES,
        ),
    )


_BUILDERS: Final[dict[Family, Callable[[], Any]]] = {
    "flux": _flux,
    "sd3": _sd3,
    "qwen_image": _qwen_image,
    "wan": _wan,
    "hunyuan_video": _hunyuan_video,
}
