"""FLUX: packed latents [B, (h/2)(w/2), 4z], embedded guidance, timestep in [0, 1].

Wraps diffusers' FluxPipeline; the denoising loop is ours, everything else is the pipeline's own.
"""

from typing import Any

import numpy as np
import torch
from diffusers import (
    AutoencoderKL,
    FlowMatchEulerDiscreteScheduler,
    FluxPipeline,
    FluxTransformer2DModel,
)
from diffusers.pipelines.flux.pipeline_flux import calculate_shift
from torch import Tensor

from digen_core.config import ModelConfig
from digen_core.models.policy import TORCH_DTYPES, Condition, Part, resolve_device


class FluxPolicy:
    """A FLUX pipeline as a Policy."""

    def __init__(self, pipeline: Any, config: ModelConfig, device: torch.device) -> None:
        self.pipeline = pipeline
        self.transformer = pipeline.transformer
        self.reference_transformer: Any = None
        self.device = device
        # The module's own ``dtype`` walks all its submodules: milliseconds at each step.
        self._dtype = TORCH_DTYPES[config.dtype]
        self.latent_dtype = torch.promote_types(self._dtype, torch.float32)
        self._config = config
        # The latent's sides are even because pairs of them are packed into a token.
        side = pipeline.vae_scale_factor * 2
        if config.height % side or config.width % side:
            raise ValueError(
                f"model.height x model.width is {config.height} x {config.width}; "
                f"this FLUX needs multiples of {side}."
            )
        self._rows, self._columns = config.height // side, config.width // side
        channels = self.transformer.config.in_channels
        self.latent_shape: tuple[int, ...] = (self._rows * self._columns, channels)

    @torch.no_grad()
    def encode(self, prompts: list[str]) -> Condition:
        """Embed prompts: ``prompt_embeds`` [B, L, D] and ``pooled`` [B, P]."""
        prompt_embeds, pooled, _ = self.pipeline.encode_prompt(
            prompt=prompts,
            prompt_2=None,
            device=self.device,
            max_sequence_length=self._config.max_sequence_length,
        )
        return {"prompt_embeds": prompt_embeds, "pooled": pooled}

    def sigmas(self, num_steps: int) -> Tensor:
        """Return the scheduler's schedule, float32 [num_steps + 1], as FluxPipeline asks for it."""
        scheduler = FlowMatchEulerDiscreteScheduler.from_config(self.pipeline.scheduler.config)
        settings = scheduler.config
        mu = calculate_shift(
            self.latent_shape[0],
            settings.base_image_seq_len,
            settings.max_image_seq_len,
            settings.base_shift,
            settings.max_shift,
        )
        scheduler.set_timesteps(sigmas=np.linspace(1.0, 1 / num_steps, num_steps), mu=mu)
        sigmas: Tensor = scheduler.sigmas
        return sigmas

    def velocity(self, x: Tensor, sigma: Tensor, condition: Condition) -> Tensor:
        """Map packed latents [B, L, C] at noise levels [B] to velocities [B, L, C]."""
        dtype = self._dtype
        embeds = condition["prompt_embeds"].to(dtype)
        guidance = None
        if self.transformer.config.guidance_embeds:
            guidance = torch.full([len(x)], self._config.guidance_scale, device=self.device)
        velocity: Tensor = self.transformer(
            hidden_states=x.to(dtype),
            timestep=sigma.to(self.device, dtype).expand(len(x)),
            guidance=guidance,
            pooled_projections=condition["pooled"].to(dtype),
            encoder_hidden_states=embeds,
            txt_ids=torch.zeros(embeds.shape[1], 3, device=self.device, dtype=dtype),
            img_ids=FluxPipeline._prepare_latent_image_ids(
                len(x), self._rows, self._columns, self.device, dtype
            ),
            return_dict=False,
        )[0]
        return velocity.to(self.latent_dtype)

    @torch.no_grad()
    def decode(self, x: Tensor) -> Tensor:
        """Map packed clean latents [B, L, C] to images [B, 3, H, W] in [0, 1]."""
        vae = self.pipeline.vae
        latents = FluxPipeline._unpack_latents(
            x, self._config.height, self._config.width, self.pipeline.vae_scale_factor
        )
        latents = latents / vae.config.scaling_factor + vae.config.shift_factor
        images: Tensor = vae.decode(latents.to(vae.dtype), return_dict=False)[0]
        return (images.float() / 2 + 0.5).clamp(0, 1)


def load_flux(config: ModelConfig, parts: frozenset[Part]) -> FluxPolicy:
    """Load the named parts of a FLUX folder or hub id; a trainer needs no VAE and no encoders."""
    dtype = TORCH_DTYPES[config.dtype]
    device = resolve_device(config.device)
    # The VAE's config alone tells the latent's size; its weights stay out of trainers.
    left_out: dict[str, Any] = {}
    if "text_encoders" not in parts:
        left_out |= dict.fromkeys(
            ("text_encoder", "text_encoder_2", "tokenizer", "tokenizer_2"), None
        )
    if "vae" not in parts:
        vae_config = AutoencoderKL.load_config(
            config.path, subfolder="vae", revision=config.revision
        )
        with torch.device("meta"):
            left_out["vae"] = AutoencoderKL.from_config(vae_config)
    transformer = FluxTransformer2DModel.from_pretrained(
        config.path, subfolder="transformer", revision=config.revision, dtype=dtype
    )
    pipeline = FluxPipeline.from_pretrained(
        config.path,
        revision=config.revision,
        dtype=dtype,
        transformer=transformer,
        **left_out,
    )
    for name in ("transformer", "text_encoder", "text_encoder_2"):
        module = getattr(pipeline, name, None)
        if module is not None:
            module.to(device).eval().requires_grad_(False)
    if "vae" in parts:
        pipeline.vae.to(device).eval().requires_grad_(False)
    pipeline.set_progress_bar_config(disable=True)
    return FluxPolicy(pipeline, config, device)
