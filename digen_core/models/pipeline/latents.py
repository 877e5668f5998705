"""Latents of a family's VAE: their scale and, of videos, their shape."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from digen_core.config.model import ModelConfig
from digen_core.models.image_size import require_frames


def video_latent_shape(
    config: ModelConfig, *, channels: int, spatial: int, temporal: int
) -> tuple[int, int, int, int]:
    """Return [C, F, H, W] of a video's latent; the VAE keeps the first frame for itself.

    Args:
        config: with the sizes.
        channels: of the latent.
        spatial: pixels per latent pixel.
        temporal: frames per latent frame, after the first.

    Raises:
        ConfigError: the frames do not fill those of the latent.
    """
    require_frames(config, temporal)
    frames = (config.num_frames - 1) // temporal + 1
    return channels, frames, config.height // spatial, config.width // spatial


def unscaled(latents: Tensor, vae_config: Any) -> Tensor:
    """Return latents [B, C, ...] at the scale and around the shift that the VAE has for all."""
    return latents / float(vae_config.scaling_factor) + float(vae_config.shift_factor or 0)


def scaled(latents: Tensor, vae_config: Any) -> Tensor:
    """Return latents [B, C, ...] of the VAE without its shift, times its scale: see `unscaled`."""
    return (latents - float(vae_config.shift_factor or 0)) * float(vae_config.scaling_factor)


def with_latent_statistics(latents: Tensor, vae_config: Any) -> Tensor:
    """Return latents [B, C, F, H, W] with the mean and deviation that the VAE has per channel."""
    mean, std = _latent_statistics(latents, vae_config)
    return latents * std + mean


def without_latent_statistics(latents: Tensor, vae_config: Any) -> Tensor:
    """Return latents [B, C, F, H, W] of the VAE without the mean and deviation that it has."""
    mean, std = _latent_statistics(latents, vae_config)
    return (latents - mean) / std


def _latent_statistics(latents: Tensor, vae_config: Any) -> Iterator[Tensor]:
    return (
        torch.tensor(values, device=latents.device, dtype=latents.dtype).view(1, -1, 1, 1, 1)
        for values in (vae_config.latents_mean, vae_config.latents_std)
    )
