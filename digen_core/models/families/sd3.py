"""Stable Diffusion 3, 3.5: latents [B, z, h, w], classifier-free guidance, timestep in [0, 1000].

Wraps diffusers' StableDiffusion3Pipeline; the denoising loop is ours.
"""

from typing import Any

from diffusers import (
    AutoencoderKL,
    FlowMatchEulerDiscreteScheduler,
    SD3Transformer2DModel,
    StableDiffusion3Pipeline,
)
from torch import Tensor

from digen_core.models.image_size import require_positions
from digen_core.models.pipeline.latents import scaled, unscaled
from digen_core.models.pipeline.policy import PipelinePolicy
from digen_core.models.policy import Condition
from digen_core.models.schedules import dynamic_shift, scheduler_sigmas
from digen_core.models.tiny.sizes import LATENT_CHANNELS, TEXT_WIDTH, VAE_CHANNELS, TransformerSize


class SD3Policy(PipelinePolicy):
    """A Stable Diffusion 3 pipeline as a Policy."""

    pipeline_class = StableDiffusion3Pipeline
    vae_class = AutoencoderKL
    tokenizer_name = "tokenizer_3"
    uses_cfg = True

    @classmethod
    def tiny(cls, size: TransformerSize, kind: str = "") -> StableDiffusion3Pipeline:
        """Build a pipeline with random weights: latents of 4 channels, 1/8 of the image's sides."""
        from digen_core.models.tiny import encoders, tokenizers, vaes

        clip_tokenizer, t5_tokenizer = tokenizers.clip_tokenizer(), tokenizers.t5_tokenizer()
        both = 2 * TEXT_WIDTH  # the two CLIPs side by side, as wide as T5
        return StableDiffusion3Pipeline(
            scheduler=FlowMatchEulerDiscreteScheduler(shift=3.0),
            vae=vaes.image_vae(
                VAE_CHANNELS, LATENT_CHANNELS, scaling_factor=1.5305, shift_factor=0.0609
            ),
            text_encoder=encoders.clip(clip_tokenizer, TEXT_WIDTH, projected=True),
            tokenizer=clip_tokenizer,
            text_encoder_2=encoders.clip(clip_tokenizer, TEXT_WIDTH, projected=True),
            tokenizer_2=clip_tokenizer,
            text_encoder_3=encoders.t5(t5_tokenizer, both),
            tokenizer_3=t5_tokenizer,
            transformer=SD3Transformer2DModel(
                **size.settings,
                sample_size=8,
                in_channels=LATENT_CHANNELS,
                out_channels=LATENT_CHANNELS,
                joint_attention_dim=both,
                caption_projection_dim=size.width,
                pooled_projection_dim=both,
                pos_embed_max_size=16,
                dual_attention_layers=(0,),
                qk_norm="rms_norm",
            ),
        )

    def shape_of_latent(self) -> tuple[int, ...]:
        """Return (z, h, w); the position embedding bounds h and w."""
        require_positions(self.config, self.transformer.config.pos_embed_max_size * self.side)
        pixels = self.pipeline.vae_scale_factor
        height, width = self.config.height, self.config.width
        return self.transformer.config.in_channels, height // pixels, width // pixels

    def embed(self, prompts: list[str]) -> Condition:
        """Return ``prompt_embeds`` [B, 77 + L, D] (CLIP, then T5) and ``pooled`` [B, P]."""
        prompt_embeds, _, pooled, _ = self.pipeline.encode_prompt(
            prompt=prompts,
            prompt_2=None,
            prompt_3=None,
            device=self.device,
            do_classifier_free_guidance=False,  # the negative prompt is embedded once, by itself
            max_sequence_length=self.config.max_sequence_length,
        )
        return {"prompt_embeds": prompt_embeds, "pooled": pooled}

    def shapes_of_embeddings(self) -> dict[str, tuple[int, ...]]:
        """Return the shapes of a prompt's ``prompt_embeds`` and ``pooled``."""
        settings = self.transformer.config
        length = self.pipeline.tokenizer_max_length + self.config.max_sequence_length
        return {
            "prompt_embeds": (length, settings.joint_attention_dim),
            "pooled": (settings.pooled_projection_dim,),
        }

    def sigmas_of_family(self, num_steps: int) -> Tensor:
        """Return the scheduler's own sigmas.

        With SD3's static shift these are shifted twice at the lower end (diffusers shifts the
        smallest sigma when it is made and the range between again): 0.0089 instead of 0.003.
        """
        scheduler = self.pipeline.scheduler
        arguments: dict[str, Any] = {"num_inference_steps": num_steps}
        if scheduler.config.use_dynamic_shifting:
            _, height, width = self.latent_shape
            patch = self.transformer.config.patch_size
            arguments["mu"] = dynamic_shift(scheduler, (height // patch) * (width // patch))
        return scheduler_sigmas(scheduler, **arguments)

    def predict(self, x: Tensor, sigma: Tensor, condition: Condition) -> Tensor:
        """Return the velocities [B, z, h, w]."""
        velocity: Tensor = self.transformer(
            hidden_states=x.to(self.dtype),
            timestep=1000 * sigma,
            encoder_hidden_states=condition["prompt_embeds"].to(self.dtype),
            pooled_projections=condition["pooled"].to(self.dtype),
            return_dict=False,
        )[0]
        return velocity

    def image_latents(self, images: Tensor) -> Tensor:
        """Return the latents [B, z, h, w] of images."""
        vae = self.pipeline.vae
        return scaled(vae.encode(images).latent_dist.mode(), vae.config)

    def vae_latents(self, x: Tensor) -> Tensor:
        """Return latents [B, z, h, w]."""
        return unscaled(x, self.pipeline.vae.config)
