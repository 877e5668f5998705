"""HunyuanVideo: latents [B, z, F, h, w], embedded guidance, timestep in [0, 1000].

Wraps diffusers' HunyuanVideoPipeline; the denoising loop is ours.
"""

from functools import partial
from typing import Any

import numpy as np
import torch
from diffusers import (
    AutoencoderKLHunyuanVideo,
    FlowMatchEulerDiscreteScheduler,
    HunyuanVideoPipeline,
    HunyuanVideoTransformer3DModel,
)
from diffusers.pipelines.hunyuan_video.pipeline_hunyuan_video import DEFAULT_PROMPT_TEMPLATE
from torch import Tensor

from digen_core.config.model import ModelConfig
from digen_core.models.pipeline_policy import PipelinePolicy, video_latent_shape
from digen_core.models.policy import Condition
from digen_core.models.schedules import scheduler_sigmas
from digen_core.models.tiny.sizes import LATENT_CHANNELS, TEXT_WIDTH, TransformerSize


class HunyuanVideoPolicy(PipelinePolicy):
    """A HunyuanVideo pipeline as a Policy."""

    pipeline_class = HunyuanVideoPipeline
    vae_class = AutoencoderKLHunyuanVideo

    @classmethod
    def tiny(cls, size: TransformerSize) -> HunyuanVideoPipeline:
        """Build a pipeline with random weights: latents of 4 channels, 1/8 of the image's sides."""
        from digen_core.models.tiny import parts, tokenizers

        clip_tokenizer, llama_tokenizer = tokenizers.clip_tokenizer(), tokenizers.llama_tokenizer()
        return HunyuanVideoPipeline(
            scheduler=FlowMatchEulerDiscreteScheduler(shift=7.0),
            vae=parts.hunyuan_vae(LATENT_CHANNELS),
            text_encoder=parts.llama(llama_tokenizer, TEXT_WIDTH),
            tokenizer=llama_tokenizer,
            text_encoder_2=parts.clip(clip_tokenizer, TEXT_WIDTH),
            tokenizer_2=clip_tokenizer,
            transformer=HunyuanVideoTransformer3DModel(
                **size.settings,
                in_channels=LATENT_CHANNELS,
                out_channels=LATENT_CHANNELS,
                num_single_layers=size.blocks,
                num_refiner_layers=1,
                text_embed_dim=TEXT_WIDTH,
                pooled_projection_dim=TEXT_WIDTH,
                rope_axes_dim=size.axes,
            ),
        )

    def __init__(self, pipeline: Any, config: ModelConfig, device: torch.device) -> None:
        super().__init__(pipeline, config, device)
        self.transformer.masks_text = True
        for blocks in (
            self.transformer.transformer_blocks,
            self.transformer.single_transformer_blocks,
        ):
            for block in blocks:
                block.register_forward_pre_hook(partial(_without_mask, self.transformer))

    def shape_of_latent(self) -> tuple[int, ...]:
        """Return (z, F, h, w)."""
        settings = self.transformer.config
        return video_latent_shape(
            self,
            channels=settings.in_channels,
            spatial=self.pipeline.vae_scale_factor_spatial,
            temporal=self.pipeline.vae_scale_factor_temporal,
        )

    def wrapped(self, prompts: list[str]) -> tuple[list[str], int]:
        """Return the prompts in the template; what stands before them is dropped again."""
        template = prompt_template(self.pipeline.tokenizer)
        texts = [template["template"].format(prompt) for prompt in prompts]
        return texts, template["crop_start"]

    def embed(self, prompts: list[str]) -> Condition:
        """Return ``prompt_embeds`` [B, L, D], its ``mask`` [B, L] and ``pooled`` [B, P]."""
        prompt_embeds, pooled, mask = self.pipeline.encode_prompt(
            prompt=prompts,
            prompt_template=prompt_template(self.pipeline.tokenizer),
            device=self.device,
            max_sequence_length=self.config.max_sequence_length,
        )
        return {"prompt_embeds": prompt_embeds, "mask": mask, "pooled": pooled}

    def shapes_of_embeddings(self) -> dict[str, tuple[int, ...]]:
        """Return the shapes of a prompt's ``prompt_embeds``, ``mask`` and ``pooled``."""
        settings, length = self.transformer.config, self.config.max_sequence_length
        return {
            "prompt_embeds": (length, settings.text_embed_dim),
            "mask": (length,),
            "pooled": (settings.pooled_projection_dim,),
        }

    def sigmas_of_family(self, num_steps: int) -> Tensor:
        """Return evenly spaced sigmas, shifted as the scheduler says (7 for HunyuanVideo)."""
        return scheduler_sigmas(
            self.pipeline.scheduler, sigmas=np.linspace(1.0, 0.0, num_steps + 1)[:-1]
        )

    def predict(self, x: Tensor, sigma: Tensor, condition: Condition) -> Tensor:
        """Return the velocities [B, z, F, h, w]."""
        guidance = None
        if self.transformer.config.guidance_embeds:
            # Multiplied in the model's dtype, as the model is used to: 6 is 6016 in bfloat16.
            scale = self.config.guidance_scale
            guidance = torch.full([len(x)], scale, device=self.device, dtype=self.dtype) * 1000
        embeds, mask = condition["prompt_embeds"].to(self.dtype), condition.get("mask")
        self.transformer.masks_text = mask is not None
        if mask is None:
            mask = torch.ones(embeds.shape[:2], dtype=torch.int64, device=self.device)
        velocity: Tensor = self.transformer(
            hidden_states=x.to(self.dtype),
            timestep=1000 * sigma,
            guidance=guidance,
            encoder_hidden_states=embeds,
            encoder_attention_mask=mask,
            pooled_projections=condition["pooled"].to(self.dtype),
            return_dict=False,
        )[0]
        return velocity

    def vae_latents(self, x: Tensor) -> Tensor:
        """Return latents [B, z, F, h, w]."""
        return x / float(self.pipeline.vae.config.scaling_factor)


def prompt_template(tokenizer: Any) -> dict[str, Any]:
    """Return the pipeline's template and how many tokens before the prompt are cropped again.

    With HunyuanVideo's own tokenizer these are the 95 that diffusers writes down.
    """
    template = DEFAULT_PROMPT_TEMPLATE["template"]
    before, _ = template.split("{}")
    return {"template": template, "crop_start": len(tokenizer(before).input_ids)}


def _without_mask(
    transformer: Any, block: torch.nn.Module, arguments: tuple[Any, ...]
) -> tuple[Any, ...]:
    """Take the mask out of a block's arguments where no text is padded.

    diffusers makes one all the same, and attention with a mask is no flash attention.
    """
    if transformer.masks_text:
        return arguments
    hidden, text, embedded, _, *rest = arguments
    return hidden, text, embedded, None, *rest
