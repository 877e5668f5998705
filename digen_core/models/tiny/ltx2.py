"""Parts of a tiny LTX-2 that no other family has; weights are of the global generator.

LTX-2.3 and 2.5 have other ones, by the names of these kinds: empty is LTX-2.
"""

from typing import Any, Final

from diffusers import AutoencoderKLLTX2Audio, AutoencoderKLLTX2Video
from diffusers.pipelines.ltx2.connectors import LTX2TextConnectors
from diffusers.pipelines.ltx2.vocoder import LTX2Vocoder, LTX2VocoderWithBWE
from transformers import (
    Gemma4UnifiedConfig,
    Gemma4UnifiedForConditionalGeneration,
    PreTrainedTokenizerBase,
)

_MEL_BINS: Final = 8
_AUDIO_CHANNELS: Final = 2  # of the audio's latent
_OF_23: Final = {
    "gated_attn": True,
    "cross_attn_mod": True,
    "audio_gated_attn": True,
    "audio_cross_attn_mod": True,
    "use_prompt_embeddings": False,
    "perturbed_attn": True,
}
TRANSFORMERS: Final[dict[str, dict[str, bool]]] = {
    "": {},
    "2.3": _OF_23,
    "2.5": {**_OF_23, "ff_bias": False, "use_keyframes_abs_pos_embedding": True},
}
"""What the transformer of each kind has that LTX-2's has not: in the published ones' settings."""


def video_vae(latent_channels: int, kind: str = "") -> Any:
    """Return the VAE of videos, 16 pixels per latent pixel and 4 frames per latent frame."""
    types: tuple[str, ...] = ("spatiotemporal",) * 2
    blocks: tuple[int, ...] = (8, 16)
    factors: tuple[int, ...] = (2, 2)
    if kind:
        types, blocks, factors = ("spatiotemporal", "temporal", "spatial"), (8, 8, 16), (2, 1, 2)
    scaled = (True,) * len(types)
    vae = AutoencoderKLLTX2Video(
        latent_channels=latent_channels,
        block_out_channels=(16,) * len(types),
        down_block_types=("LTX2VideoDownBlock3D",) * len(types),
        decoder_block_out_channels=blocks,
        layers_per_block=(1, *(1 for _ in types)),
        decoder_layers_per_block=(1, *(1 for _ in types)),
        spatio_temporal_scaling=scaled,
        decoder_spatio_temporal_scaling=scaled,
        decoder_inject_noise=(False, *(False for _ in types)),
        downsample_type=types[::-1],
        upsample_type=types,
        upsample_residual=tuple(not kind for _ in types),
        upsample_factor=factors,
        decoder_causal=False,
        decoder_spatial_padding_mode="zeros" if kind else "reflect",
        # as in the published settings; LTX-2's are what follows from the blocks
        spatial_compression_ratio=16 if kind else None,
        temporal_compression_ratio=4 if kind else None,
    )
    vae.latents_mean.normal_(std=0.3)  # not 0 and 1, so that leaving them out shows
    vae.latents_std.uniform_(0.5, 2.0)
    return vae.eval()


def audio_vae() -> tuple[Any, int]:
    """Return LTX-2's VAE of audio, and the channels that the transformer sees of its latents."""
    vae = AutoencoderKLLTX2Audio(
        base_channels=4,
        ch_mult=(1, 1, 1),
        num_res_blocks=1,
        latent_channels=_AUDIO_CHANNELS,
        mel_bins=_MEL_BINS,
    )
    return vae.eval(), _AUDIO_CHANNELS * (_MEL_BINS // vae.mel_compression_ratio)


def vocoder(kind: str = "") -> Any:
    """Return the vocoder, which makes sound of two channels of mel spectra."""
    settings: dict[str, Any] = {
        "in_channels": 2 * _MEL_BINS,
        "hidden_channels": 8,
        "upsample_kernel_sizes": [4, 4],
        "upsample_factors": [2, 2],
        "resnet_kernel_sizes": [3],
        "resnet_dilations": [[1]],
    }
    if not kind:
        return LTX2Vocoder(**settings).eval()
    return LTX2VocoderWithBWE(
        **settings,
        **{f"bwe_{name}": value for name, value in settings.items()},
        filter_length=8,
        hop_length=4,
        window_length=8,
        num_mel_channels=_MEL_BINS,
        input_sampling_rate=16000,
        output_sampling_rate=16000,
    ).eval()


def connectors(text: int, video: int, layers: int, kind: str = "") -> Any:
    """Return what stands between Gemma and the transformer, with a register for padding.

    Args:
        text: width of Gemma's states.
        video: that of the transformer's video, which those of LTX-2.3 and 2.5 have, and of its
            audio half of it.
        layers: of Gemma, all of whose states are read.
        kind: of the model.
    """
    widths = (video, video // 2) if kind else (text, text)
    settings: dict[str, Any] = {}
    for name, width in zip(("video", "audio"), widths, strict=True):
        settings |= {
            f"{name}_connector_num_attention_heads": 4,
            f"{name}_connector_attention_head_dim": width // 4,
            f"{name}_connector_num_layers": 1,
            f"{name}_connector_num_learnable_registers": 1,
            f"{name}_gated_attn": bool(kind),
            f"{name}_hidden_dim": width,
        }
    return LTX2TextConnectors(
        caption_channels=text,
        text_proj_in_factor=layers + 1,
        rope_type="split",
        per_modality_projections=bool(kind),
        proj_bias=bool(kind),
        **settings,
    ).eval()


def gemma4(tokenizer: PreTrainedTokenizerBase, width: int, layers: int) -> Any:
    """Return a Gemma 4 as LTX-2.5 has it, of texts only: its last layer sees all, others few."""
    return Gemma4UnifiedForConditionalGeneration(
        Gemma4UnifiedConfig(
            text_config={
                "vocab_size": len(tokenizer),
                "hidden_size": width,
                "intermediate_size": 2 * width,
                "num_hidden_layers": layers,
                "layer_types": [*["sliding_attention"] * (layers - 1), "full_attention"],
                "num_attention_heads": 4,
                "num_key_value_heads": 2,
                "num_global_key_value_heads": 1,
                "head_dim": width // 4,
                "global_head_dim": width // 2,
                "attention_k_eq_v": True,
                "sliding_window": 16,
                "max_position_embeddings": 4096,
                "bos_token_id": tokenizer.bos_token_id,
                "eos_token_id": tokenizer.eos_token_id,
                "pad_token_id": tokenizer.pad_token_id,
                "use_cache": False,
            },
            vision_config=None,
            audio_config=None,
        )
    ).eval()
