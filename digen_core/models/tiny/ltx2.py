"""Parts of a tiny LTX-2 that no other family has; weights are of the global generator."""

from typing import Any, Final

from diffusers import AutoencoderKLLTX2Audio, AutoencoderKLLTX2Video
from diffusers.pipelines.ltx2.connectors import LTX2TextConnectors
from diffusers.pipelines.ltx2.vocoder import LTX2Vocoder

_MEL_BINS: Final = 8
_AUDIO_CHANNELS: Final = 2  # of the audio's latent


def video_vae(latent_channels: int) -> Any:
    """Return LTX-2's VAE of videos, 16 pixels per latent pixel and 4 frames per latent frame."""
    vae = AutoencoderKLLTX2Video(
        latent_channels=latent_channels,
        block_out_channels=(16, 16),
        down_block_types=("LTX2VideoDownBlock3D",) * 2,
        decoder_block_out_channels=(8, 16),
        layers_per_block=(1, 1, 1),
        decoder_layers_per_block=(1, 1, 1),
        spatio_temporal_scaling=(True, True),
        decoder_spatio_temporal_scaling=(True, True),
        decoder_inject_noise=(False, False, False),
        downsample_type=("spatiotemporal", "spatiotemporal"),
        upsample_type=("spatiotemporal", "spatiotemporal"),
        upsample_residual=(True, True),
        upsample_factor=(2, 2),
        decoder_causal=False,
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


def vocoder() -> Any:
    """Return LTX-2's vocoder, which makes sound of two channels of mel spectra."""
    return LTX2Vocoder(
        in_channels=2 * _MEL_BINS,
        hidden_channels=8,
        upsample_kernel_sizes=[4, 4],
        upsample_factors=[2, 2],
        resnet_kernel_sizes=[3],
        resnet_dilations=[[1]],
    ).eval()


def connectors(width: int, layers: int) -> Any:
    """Return what stands between Gemma 3 and the transformer, with a register for padding.

    Args:
        width: of Gemma's states.
        layers: of Gemma, all of whose states are read.
    """
    return LTX2TextConnectors(
        caption_channels=width,
        text_proj_in_factor=layers + 1,
        video_connector_num_attention_heads=4,
        video_connector_attention_head_dim=width // 4,
        video_connector_num_layers=1,
        video_connector_num_learnable_registers=1,
        audio_connector_num_attention_heads=4,
        audio_connector_attention_head_dim=width // 4,
        audio_connector_num_layers=1,
        audio_connector_num_learnable_registers=1,
        rope_type="split",
    ).eval()
