"""VAEs of a few thousand parameters."""

from typing import Any

from diffusers import (
    AutoencoderDC,
    AutoencoderKL,
    AutoencoderKLFlux2,
    AutoencoderKLHunyuanVideo,
    AutoencoderKLHunyuanVideo15,
    AutoencoderKLQwenImage,
    AutoencoderKLQwenImage21,
    AutoencoderKLWan,
)


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


def qwen_21_vae(latent_channels: int) -> Any:
    """Return Qwen-Image 2.1's VAE of colours and opacity, 8 pixels per latent pixel for its 16."""
    settings = {**_wan_vae_settings(latent_channels), "decoder_base_dim": 8}
    return AutoencoderKLQwenImage21(
        **settings, temperal_downsample=[False, True, True], scale_factor_spatial=8
    ).eval()


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
