"""Text encoders and VAEs of tiny pipelines; each draws its weights from the global generator."""

from typing import Any

from diffusers import (
    AutoencoderDC,
    AutoencoderKL,
    AutoencoderKLFlux2,
    AutoencoderKLHunyuanVideo,
    AutoencoderKLHunyuanVideo15,
    AutoencoderKLQwenImage,
    AutoencoderKLWan,
)
from transformers import (
    CLIPTextConfig,
    CLIPTextModel,
    CLIPTextModelWithProjection,
    CLIPVisionConfig,
    CLIPVisionModel,
    Gemma2Config,
    Gemma2Model,
    Gemma3Config,
    Gemma3ForConditionalGeneration,
    LlamaConfig,
    LlamaModel,
    PreTrainedTokenizerBase,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2_5_VLTextConfig,
    Qwen2_5_VLTextModel,
    Qwen3Config,
    Qwen3ForCausalLM,
    SiglipVisionConfig,
    SiglipVisionModel,
    T5Config,
    T5EncoderModel,
    UMT5Config,
    UMT5EncoderModel,
)


def clip(tokenizer: PreTrainedTokenizerBase, width: int, *, projected: bool = False) -> Any:
    """Return a CLIP text encoder, as SD3 wants it (``projected``) or without a projection."""
    config = CLIPTextConfig(
        vocab_size=len(tokenizer),
        hidden_size=width,
        intermediate_size=2 * width,
        projection_dim=width,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=tokenizer.model_max_length,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return (CLIPTextModelWithProjection if projected else CLIPTextModel)(config).eval()


def clip_vision(width: int) -> dict[str, Any]:
    """Return a CLIP image encoder of 257 tokens, as many as Wan 2.1's has, and its processor."""
    from transformers import CLIPImageProcessor

    config = CLIPVisionConfig(
        hidden_size=width,
        intermediate_size=2 * width,
        projection_dim=width,
        num_hidden_layers=2,
        num_attention_heads=4,
        image_size=32,
        patch_size=2,
    )
    return {
        "image_encoder": CLIPVisionModel(config).eval(),
        "image_processor": CLIPImageProcessor(size=config.image_size, crop_size=config.image_size),
    }


def siglip(width: int) -> dict[str, Any]:
    """Return a SigLIP image encoder of 729 tokens, as HunyuanVideo 1.5's has, and its processor."""
    from transformers import SiglipImageProcessor

    config = SiglipVisionConfig(
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=2,
        num_attention_heads=4,
        image_size=54,
        patch_size=2,
    )
    size = {"height": config.image_size, "width": config.image_size}
    return {
        "image_encoder": SiglipVisionModel(config).eval(),
        "feature_extractor": SiglipImageProcessor(size=size),
    }


def t5(tokenizer: PreTrainedTokenizerBase, width: int) -> Any:
    """Return a T5 encoder."""
    return T5EncoderModel(T5Config(**_t5_settings(tokenizer, width))).eval()


def umt5(tokenizer: PreTrainedTokenizerBase, width: int) -> Any:
    """Return a UMT5 encoder, which has position biases in every layer."""
    return UMT5EncoderModel(UMT5Config(**_t5_settings(tokenizer, width))).eval()


def _t5_settings(tokenizer: PreTrainedTokenizerBase, width: int) -> dict[str, Any]:
    return {
        "vocab_size": len(tokenizer),
        "d_model": width,
        "d_kv": width // 4,
        "d_ff": 2 * width,
        "num_layers": 2,
        "num_heads": 4,
        "dropout_rate": 0.0,
        "feed_forward_proj": "gated-gelu",
        "pad_token_id": tokenizer.pad_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "use_cache": False,
    }


def llama(tokenizer: PreTrainedTokenizerBase, width: int) -> Any:
    """Return a Llama; HunyuanVideo reads the hidden states before its last two layers."""
    return LlamaModel(
        LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=width,
            intermediate_size=2 * width,
            num_hidden_layers=3,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=2048,
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    ).eval()


def qwen_vl(tokenizer: PreTrainedTokenizerBase, width: int) -> Any:
    """Return a Qwen2.5-VL: Qwen-Image shows it texts, its editors pictures, too.

    The tokenizer of an editor has marks of pictures, as it has.
    """
    marks = {"image_token_id": "image_pad", "video_token_id": "video_pad"}
    marks |= {f"vision_{end}_token_id": f"vision_{end}" for end in ("start", "end")}
    known = tokenizer.get_vocab()
    places = {name: known.get(f"<|{mark}|>") for name, mark in marks.items()}
    return Qwen2_5_VLForConditionalGeneration(
        Qwen2_5_VLConfig(
            text_config=_qwen_vl_text_settings(tokenizer, width, 2),
            vision_config={
                "depth": 1,
                "hidden_size": 16,
                "intermediate_size": 32,
                "num_heads": 2,
                "out_hidden_size": width,
                "fullatt_block_indexes": [0],
            },
            **{name: place for name, place in places.items() if place is not None},
        )
    ).eval()


def qwen_vl_text(tokenizer: PreTrainedTokenizerBase, width: int) -> Any:
    """Return the half of Qwen2.5-VL that reads texts.

    HunyuanVideo 1.5 reads the hidden states before its last two layers.
    """
    config = Qwen2_5_VLTextConfig(**_qwen_vl_text_settings(tokenizer, width, 3))
    return Qwen2_5_VLTextModel(config).eval()


def _qwen_vl_text_settings(
    tokenizer: PreTrainedTokenizerBase, width: int, layers: int
) -> dict[str, Any]:
    return {
        "vocab_size": len(tokenizer),
        "hidden_size": width,
        "intermediate_size": 2 * width,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 2048,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 1e6,
            "mrope_section": [width // 16, width // 32, width // 32],
        },
        "bos_token_id": None,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }


def qwen3(tokenizer: PreTrainedTokenizerBase, width: int, layers: int) -> Any:
    """Return a Qwen3: FLUX.2 reads the hidden states behind its 9th, 18th and 27th layer.

    Z-Image reads those before the last one.
    """
    return Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=len(tokenizer),
            hidden_size=width,
            intermediate_size=width,
            num_hidden_layers=layers,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=width // 4,
            max_position_embeddings=2048,
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    ).eval()


def gemma2(tokenizer: PreTrainedTokenizerBase, width: int) -> Any:
    """Return a Gemma 2 without a head."""
    config = Gemma2Config(
        vocab_size=len(tokenizer),
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=width // 4,
        query_pre_attn_scalar=width // 4,
        max_position_embeddings=4096,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        use_cache=False,
    )
    return Gemma2Model(config).eval()


def gemma3(tokenizer: PreTrainedTokenizerBase, width: int, layers: int) -> Any:
    """Return a Gemma 3, which LTX-2 shows texts only: all of its layers' states are read."""
    return Gemma3ForConditionalGeneration(
        Gemma3Config(
            text_config={
                "vocab_size": len(tokenizer),
                "hidden_size": width,
                "intermediate_size": 2 * width,
                "num_hidden_layers": layers,
                "num_attention_heads": 4,
                "num_key_value_heads": 2,
                "head_dim": width // 4,
                "query_pre_attn_scalar": width // 4,
                "max_position_embeddings": 4096,
                "bos_token_id": tokenizer.bos_token_id,
                "eos_token_id": tokenizer.eos_token_id,
                "pad_token_id": tokenizer.pad_token_id,
                "use_cache": False,
            },
            vision_config={
                "hidden_size": 16,
                "intermediate_size": 32,
                "num_hidden_layers": 1,
                "num_attention_heads": 2,
                "image_size": 32,
                "patch_size": 8,
            },
            mm_tokens_per_image=4,
        )
    ).eval()


def dc_vae(channels: tuple[int, ...], latent_channels: int, **settings: Any) -> Any:
    """Return Sana's VAE, which averages and repeats beside its convolutions, without attention."""
    config: dict[str, Any] = {
        "latent_channels": latent_channels,
        "upsample_block_type": "interpolate",
        "downsample_block_type": "conv",
        **settings,
    }
    for half in ("encoder", "decoder"):
        config |= {
            f"{half}_block_out_channels": channels,
            f"{half}_layers_per_block": (1,) * len(channels),
            f"{half}_qkv_multiscales": ((),) * len(channels),
        }
    return AutoencoderDC(**config).eval()


def image_vae(channels: tuple[int, ...], latent_channels: int, **settings: Any) -> Any:
    """Return a VAE with a resolution per entry of ``channels``, all multiples of the norm groups.

    Args:
        channels: of the resolutions; each after the first halves the sides.
        latent_channels: of the latents.
        **settings: of AutoencoderKL, over those of a tiny one.
    """
    defaults = {
        "layers_per_block": 1,
        "norm_num_groups": 8,
        "sample_size": 32,
        "mid_block_add_attention": False,
        "use_quant_conv": False,
        "use_post_quant_conv": False,
    }
    return AutoencoderKL(
        down_block_types=("DownEncoderBlock2D",) * len(channels),
        up_block_types=("UpDecoderBlock2D",) * len(channels),
        block_out_channels=channels,
        latent_channels=latent_channels,
        **defaults | settings,
    ).eval()


def flux2_vae(channels: tuple[int, ...], latent_channels: int) -> Any:
    """Return FLUX.2's VAE, whose latents have the statistics of a batch norm.

    Args:
        channels: of the resolutions; each after the first halves the sides.
        latent_channels: of the latents.
    """
    vae = AutoencoderKLFlux2(
        down_block_types=("DownEncoderBlock2D",) * len(channels),
        up_block_types=("UpDecoderBlock2D",) * len(channels),
        block_out_channels=channels,
        latent_channels=latent_channels,
        layers_per_block=1,
        norm_num_groups=8,
        sample_size=32,
        mid_block_add_attention=False,
    )
    vae.bn.running_mean.normal_(std=0.3)  # not 0 and 1, so that leaving them out shows
    vae.bn.running_var.uniform_(0.5, 2.0)
    return vae.eval()


def qwen_vae(latent_channels: int) -> Any:
    """Return Qwen-Image's VAE, 8 pixels per latent pixel."""
    return AutoencoderKLQwenImage(**_wan_vae_settings(latent_channels)).eval()


def wan_vae(latent_channels: int) -> Any:
    """Return Wan's VAE, 8 pixels per latent pixel and 4 frames per latent frame."""
    return AutoencoderKLWan(**_wan_vae_settings(latent_channels)).eval()


def wan_2_2_vae(latent_channels: int) -> Any:
    """Return a VAE as TI2V-5B of Wan 2.2 has one, 8 pixels per latent pixel where that has 16.

    Its blocks have shortcuts past their changes of size, and two of the 8 are a patch of pixels.
    """
    settings = {
        **_wan_vae_settings(latent_channels),
        "decoder_base_dim": 16,
        "dim_mult": [1, 1, 1],
        "temperal_downsample": [True, True],
        "is_residual": True,
        "in_channels": 12,
        "out_channels": 12,
        "patch_size": 2,
    }
    return AutoencoderKLWan(**settings).eval()


def _wan_vae_settings(latent_channels: int) -> dict[str, Any]:
    return {
        "base_dim": 8,
        "z_dim": latent_channels,
        "dim_mult": [1, 1, 1, 1],
        "num_res_blocks": 1,
        # neither 0 and 1, so that leaving them out shows
        "latents_mean": [0.1 * (index - 1) for index in range(latent_channels)],
        "latents_std": [1.5 - 0.2 * index for index in range(latent_channels)],
    }


def hunyuan_vae(latent_channels: int) -> Any:
    """Return HunyuanVideo's VAE, 8 pixels per latent pixel and 4 frames per latent frame."""
    return AutoencoderKLHunyuanVideo(
        block_out_channels=(8, 8, 8, 8),
        layers_per_block=1,
        latent_channels=latent_channels,
        norm_num_groups=4,
    ).eval()


def hunyuan_15_vae(latent_channels: int) -> Any:
    """Return HunyuanVideo 1.5's VAE, 16 pixels per latent pixel and 4 frames per latent frame."""
    return AutoencoderKLHunyuanVideo15(
        block_out_channels=(8, 8, 8, 8, 8), layers_per_block=1, latent_channels=latent_channels
    ).eval()
