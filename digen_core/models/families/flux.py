"""FLUX: packed latents [B, (h/2)(w/2), 4z], embedded guidance, timestep in [0, 1].

Wraps diffusers' FluxPipeline and FluxKontextPipeline, which is shown a source image; the denoising
loop is ours, everything else is the pipeline's own.
"""

import torch
from diffusers import (
    AutoencoderKL,
    FlowMatchEulerDiscreteScheduler,
    FluxKontextPipeline,
    FluxPipeline,
    FluxTransformer2DModel,
)
from torch import Tensor

from digen_core.models.pipeline.latents import scaled, unscaled
from digen_core.models.pipeline.policy import PipelinePolicy
from digen_core.models.policy import Condition
from digen_core.models.schedules import sigmas_shifted_by_size
from digen_core.models.tiny.sizes import LATENT_CHANNELS, TEXT_WIDTH, VAE_CHANNELS, TransformerSize


class FluxPolicy(PipelinePolicy):
    """A FLUX pipeline as a Policy."""

    pipeline_class = FluxPipeline
    vae_class = AutoencoderKL
    tokenizer_name = "tokenizer_2"

    @classmethod
    def tiny(cls, size: TransformerSize, kind: str = "") -> FluxPipeline | FluxKontextPipeline:
        """Build a pipeline with random weights: latents of 4 channels, 1/8 of the image's sides."""
        from digen_core.models.tiny import encoders, tokenizers, vaes

        clip_tokenizer, t5_tokenizer = tokenizers.clip_tokenizer(), tokenizers.t5_tokenizer()
        pipeline = FluxPipeline(
            scheduler=FlowMatchEulerDiscreteScheduler(shift=3.0, use_dynamic_shifting=True),
            vae=vaes.image_vae(
                VAE_CHANNELS, LATENT_CHANNELS, scaling_factor=0.3611, shift_factor=0.1159
            ),
            text_encoder=encoders.clip(clip_tokenizer, TEXT_WIDTH),
            tokenizer=clip_tokenizer,
            text_encoder_2=encoders.t5(t5_tokenizer, TEXT_WIDTH),
            tokenizer_2=t5_tokenizer,
            transformer=FluxTransformer2DModel(
                **size.settings,
                in_channels=4 * LATENT_CHANNELS,
                num_single_layers=size.blocks,
                joint_attention_dim=TEXT_WIDTH,
                pooled_projection_dim=TEXT_WIDTH,
                guidance_embeds=True,
                axes_dims_rope=size.axes,
            ),
        )
        return FluxKontextPipeline(**pipeline.components) if kind else pipeline

    def shape_of_latent(self) -> tuple[int, ...]:
        """Return (tokens, channels); pairs of rows and columns are packed into a token."""
        side = self.side
        self._rows, self._columns = self.config.height // side, self.config.width // side
        return self._rows * self._columns, self.transformer.config.in_channels

    def embed(self, prompts: list[str]) -> Condition:
        """Return ``prompt_embeds`` [B, L, D] and ``pooled`` [B, P]; padding is not masked."""
        prompt_embeds, pooled, _ = self.pipeline.encode_prompt(
            prompt=prompts,
            prompt_2=None,
            device=self.device,
            max_sequence_length=self.config.max_sequence_length,
        )
        return {"prompt_embeds": prompt_embeds, "pooled": pooled}

    def shapes_of_embeddings(self) -> dict[str, tuple[int, ...]]:
        """Return the shapes of a prompt's ``prompt_embeds`` and ``pooled``."""
        settings = self.transformer.config
        return {
            "prompt_embeds": (self.config.max_sequence_length, settings.joint_attention_dim),
            "pooled": (settings.pooled_projection_dim,),
        }

    def image_latents(self, images: Tensor) -> Tensor:
        """Return the packed latents [B, tokens, channels] of images."""
        vae = self.pipeline.vae
        latents = scaled(vae.encode(images).latent_dist.mode(), vae.config)
        packed: Tensor = FluxPipeline._pack_latents(latents, *latents.shape)
        return packed

    def sigmas_of_family(self, num_steps: int) -> Tensor:
        """Return sigmas shifted by the image's size, or by a constant if the scheduler says so."""
        return sigmas_shifted_by_size(self.pipeline.scheduler, num_steps, self.latent_shape[0])

    def predict(self, x: Tensor, sigma: Tensor, condition: Condition) -> Tensor:
        """Return the velocities [B, tokens, channels]."""
        embeds = condition["prompt_embeds"].to(self.dtype)
        shown = self.with_source(x, condition)
        # made on the device, as the pipeline's are not: it computes on while it is told
        axes = shown.shape[1] // x.shape[1], self._rows, self._columns
        places = torch.cartesian_prod(*(torch.arange(n, device=self.device) for n in axes))
        guidance = None
        if self.transformer.config.guidance_embeds:
            guidance = self.embedded_guidance(sigma)
        velocity: Tensor = self.transformer(
            hidden_states=shown,
            timestep=sigma,
            guidance=guidance,
            pooled_projections=condition["pooled"].to(self.dtype),
            encoder_hidden_states=embeds,
            txt_ids=torch.zeros(embeds.shape[1], 3, device=self.device, dtype=self.dtype),
            img_ids=places.to(self.dtype),
            return_dict=False,
        )[0]
        return velocity[:, : x.shape[1]]

    def unpacked(self, x: Tensor) -> Tensor:
        """Return latents [B, z, h, w] at their own scale."""
        latents: Tensor = FluxPipeline._unpack_latents(
            x, self.config.height, self.config.width, self.pipeline.vae_scale_factor
        )
        return latents

    def vae_latents(self, x: Tensor) -> Tensor:
        """Return latents [B, z, h, w]."""
        return unscaled(self.unpacked(x), self.pipeline.vae.config)
