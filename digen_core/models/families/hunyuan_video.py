"""HunyuanVideo: latents [B, z, F, h, w], embedded guidance, timestep in [0, 1000].

Wraps diffusers' HunyuanVideoPipeline; the denoising loop is ours.
"""

from collections.abc import Hashable
from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch
from diffusers import (
    AutoencoderKLHunyuanVideo,
    FlowMatchEulerDiscreteScheduler,
    HunyuanVideoPipeline,
    HunyuanVideoTransformer3DModel,
)
from diffusers.models._modeling_parallel import ContextParallelInput as Split
from diffusers.models._modeling_parallel import ContextParallelOutput as Joined
from diffusers.pipelines.hunyuan_video.pipeline_hunyuan_video import DEFAULT_PROMPT_TEMPLATE
from torch import Tensor

from digen_core.config.model import ModelConfig
from digen_core.gang.context_parallel import Plan, mask_as_dealt
from digen_core.gang.members import Gang
from digen_core.models.pipeline.latents import video_latent_shape
from digen_core.models.pipeline.policy import PipelinePolicy
from digen_core.models.policy import Condition
from digen_core.models.schedules import scheduler_sigmas
from digen_core.models.tiny.sizes import LATENT_CHANNELS, TEXT_WIDTH, TransformerSize


class HunyuanPolicy(PipelinePolicy):
    """The base of HunyuanVideo and HunyuanVideo 1.5: schedule, scale of latents, dealing of tokens.

    Their transformers know as ``dealt_over`` how many members of a share deal tokens.
    """

    token_plan: ClassVar[Plan | None] = {
        "rope": {place: Split(split_dim=0, expected_dims=2, split_output=True) for place in (0, 1)},
        "transformer_blocks.0": {
            name: Split(split_dim=1, expected_dims=3)
            for name in ("hidden_states", "encoder_hidden_states")
        },
        "proj_out": Joined(gather_dim=1, expected_dims=3),
    }

    def join(self, gang: Gang) -> None:
        """Compute as a member of a gang from now on, dealing tokens and blocks as it does."""
        super().join(gang)
        for transformer in self.transformers:
            transformer.dealt_over = gang.context_parallel
            for module in transformer.context_embedder.modules():  # it refines the whole text
                if hasattr(module, "processor"):
                    module.processor._parallel_config = None

    def sigmas_of_family(self, num_steps: int) -> Tensor:
        """Return evenly spaced sigmas, shifted as the scheduler says: by 7, of 1.5 by 5 or 9."""
        return scheduler_sigmas(
            self.pipeline.scheduler, sigmas=np.linspace(1.0, 0.0, num_steps + 1)[:-1]
        )

    def vae_latents(self, x: Tensor) -> Tensor:
        """Return latents [B, z, F, h, w]."""
        return x / float(self.pipeline.vae.config.scaling_factor)


class HunyuanVideoPolicy(HunyuanPolicy):
    """A HunyuanVideo pipeline as a Policy."""

    pipeline_class = HunyuanVideoPipeline
    vae_class = AutoencoderKLHunyuanVideo

    @classmethod
    def tiny(cls, size: TransformerSize, kind: str = "") -> HunyuanVideoPipeline:
        """Build a pipeline with random weights: latents of 4 channels, 1/8 of the image's sides."""
        from digen_core.models.tiny import encoders, tokenizers, vaes

        clip_tokenizer, llama_tokenizer = tokenizers.clip_tokenizer(), tokenizers.llama_tokenizer()
        return HunyuanVideoPipeline(
            scheduler=FlowMatchEulerDiscreteScheduler(shift=7.0),
            vae=vaes.hunyuan_vae(LATENT_CHANNELS),
            text_encoder=encoders.llama(llama_tokenizer, TEXT_WIDTH),
            tokenizer=llama_tokenizer,
            text_encoder_2=encoders.clip(clip_tokenizer, TEXT_WIDTH),
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
        self.transformer.masked_text = 0  # tokens of text, if some are padding
        self.transformer.dealt_over = 1  # members of a share
        for blocks in (
            self.transformer.transformer_blocks,
            self.transformer.single_transformer_blocks,
        ):
            for block in blocks:
                block.register_forward_pre_hook(partial(_with_mask, self.transformer))

    def shape_of_latent(self) -> tuple[int, ...]:
        """Return (z, F, h, w)."""
        settings = self.transformer.config
        return video_latent_shape(
            self.config,
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

    @property
    def mode(self) -> Hashable:
        """Whether blocks mask text."""
        masked: int = self.transformer.masked_text
        return masked

    def predict(self, x: Tensor, sigma: Tensor, condition: Condition) -> Tensor:
        """Return the velocities [B, z, F, h, w]."""
        guidance = None
        if self.transformer.config.guidance_embeds:
            # Multiplied in the model's dtype, as the model is used to: 6 is 6016 in bfloat16.
            guidance = self.embedded_guidance(sigma, self.dtype) * 1000
        embeds, mask = condition["prompt_embeds"].to(self.dtype), condition.get("mask")
        self.transformer.masked_text = 0 if mask is None else embeds.shape[1]
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


def prompt_template(tokenizer: Any) -> dict[str, Any]:
    """Return the pipeline's template and how many tokens before the prompt are cropped again.

    With HunyuanVideo's own tokenizer these are the 95 that diffusers writes down.
    """
    template = DEFAULT_PROMPT_TEMPLATE["template"]
    before, _ = template.split("{}")
    return {"template": template, "crop_start": len(tokenizer(before).input_ids)}


def _with_mask(
    transformer: Any, block: torch.nn.Module, arguments: tuple[Any, ...]
) -> tuple[Any, ...]:
    """Put the right mask into a block's arguments: none where no text is padded.

    diffusers makes one all the same, and attention with a mask is no flash attention. It makes it
    for latents before text, which is not the order in which Ulysses puts keys together.
    """
    hidden, text, embedded, mask, *rest = arguments
    if not transformer.masked_text:
        mask = None
    else:
        mask = mask_as_dealt(mask, transformer.masked_text, transformer.dealt_over)
    return hidden, text, embedded, mask, *rest
