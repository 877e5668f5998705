"""Sana: latents [B, z, h, w] of 1/32 of the image's sides, classifier-free guidance.

Wraps diffusers' SanaPipeline; the denoising loop is ours. Attention over the image is linear, and
the timestep is in [0, 1000]. Gemma 2 reads a prompt behind an instruction to enhance it, of which
the transformer is shown the first token only; what guidance steers away from is read by itself.
"""

import inspect

from diffusers import (
    AutoencoderDC,
    DPMSolverMultistepScheduler,
    SanaPipeline,
    SanaTransformer2DModel,
)
from torch import Tensor

from digen_core.models.pipeline.policy import PipelinePolicy
from digen_core.models.policy import Condition
from digen_core.models.schedules import scheduler_sigmas
from digen_core.models.tiny.sizes import LATENT_CHANNELS, TEXT_WIDTH, VAE_CHANNELS, TransformerSize


class SanaPolicy(PipelinePolicy):
    """A Sana pipeline as a Policy."""

    pipeline_class = SanaPipeline
    vae_class = AutoencoderDC
    not_in_float16 = ("text_encoder", "vae")
    uses_cfg = True

    @classmethod
    def tiny(cls, size: TransformerSize, kind: str = "") -> SanaPipeline:
        """Build a pipeline with random weights: latents of 4 channels, 1/16 of the sides."""
        from digen_core.models.tiny import encoders, tokenizers, vaes

        tokenizer = tokenizers.gemma_tokenizer()
        return SanaPipeline(
            scheduler=DPMSolverMultistepScheduler(
                prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=3.0
            ),
            vae=vaes.dc_vae((*VAE_CHANNELS, 8), LATENT_CHANNELS, scaling_factor=0.41407),
            text_encoder=encoders.gemma2(tokenizer, TEXT_WIDTH),
            tokenizer=tokenizer,
            transformer=SanaTransformer2DModel(
                **size.settings,
                in_channels=LATENT_CHANNELS,
                out_channels=LATENT_CHANNELS,
                num_cross_attention_heads=size.heads,
                cross_attention_head_dim=size.head,
                cross_attention_dim=size.width,
                caption_channels=TEXT_WIDTH,
                sample_size=8,
            ),
        )

    def shape_of_latent(self) -> tuple[int, ...]:
        """Return (z, h, w)."""
        pixels = self.pipeline.vae_scale_factor
        height, width = self.config.height, self.config.width
        return self.transformer.config.in_channels, height // pixels, width // pixels

    @property
    def _instruction(self) -> list[str]:
        """The lines before a prompt: those of the pipeline's call."""
        taken = inspect.signature(self.pipeline.__call__).parameters
        lines: list[str] = taken["complex_human_instruction"].default
        return lines

    def wrapped(self, prompts: list[str]) -> tuple[list[str], int]:
        """Return the prompts behind the instruction, all of which but its first token is before.

        The pipeline strips them, and makes them lower case.
        """
        before = "\n".join(self._instruction)
        texts = [before + own.lower().strip() for own in prompts]
        return texts, len(self.pipeline.tokenizer.encode(before)) - 2

    def embed(self, prompts: list[str]) -> Condition:
        """Return ``prompt_embeds`` [B, L, D] and ``mask`` [B, L]."""
        return self._embedded(prompts, self._instruction)

    def embed_negative(self, prompts: list[str]) -> Condition:
        """Return the same of what guidance steers away from, without the instruction."""
        return self._embedded(prompts, None)

    def _embedded(self, prompts: list[str], instruction: list[str] | None) -> Condition:
        prompt_embeds, mask, *_ = self.pipeline.encode_prompt(
            prompt=prompts,
            do_classifier_free_guidance=False,  # the negative prompt is embedded once, by itself
            device=self.device,
            max_sequence_length=self.config.max_sequence_length,
            complex_human_instruction=instruction,
        )
        return {"prompt_embeds": prompt_embeds.to(self.dtype), "mask": mask}

    def shapes_of_embeddings(self) -> dict[str, tuple[int, ...]]:
        """Return the shapes of a prompt's ``prompt_embeds`` and ``mask``."""
        length, width = self.config.max_sequence_length, self.transformer.config.caption_channels
        return {"prompt_embeds": (length, width), "mask": (length,)}

    def sigmas_of_family(self, num_steps: int) -> Tensor:
        """Return the scheduler's own sigmas, beginning at 1.

        Sana comes with DPM-Solver, which begins at 0.9997 to keep a logarithm finite that only it
        takes and truncates timesteps to integers; here they are 1000 sigma.
        """
        sigmas = scheduler_sigmas(self.pipeline.scheduler, num_inference_steps=num_steps)
        sigmas[0] = 1
        return sigmas

    def predict(self, x: Tensor, sigma: Tensor, condition: Condition) -> Tensor:
        """Return the velocities [B, z, h, w]."""
        velocity: Tensor = self.transformer(
            hidden_states=x.to(self.dtype),
            timestep=1000 * sigma * self.transformer.config.timestep_scale,
            encoder_hidden_states=condition["prompt_embeds"].to(self.dtype),
            encoder_attention_mask=condition.get("mask"),
            return_dict=False,
        )[0]
        return velocity

    def image_latents(self, images: Tensor) -> Tensor:
        """Return the latents [B, z, h, w] of images; its VAE has one for each, no distribution."""
        vae = self.pipeline.vae
        latents: Tensor = vae.encode(images).latent
        return latents * float(vae.config.scaling_factor)

    def vae_latents(self, x: Tensor) -> Tensor:
        """Return latents [B, z, h, w]."""
        return x / float(self.pipeline.vae.config.scaling_factor)
