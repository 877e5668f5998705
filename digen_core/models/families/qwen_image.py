"""Qwen-Image: packed latents [B, (h/2)(w/2), 4z], norm-keeping guidance, timestep in [0, 1].

Wraps diffusers' QwenImagePipeline; the denoising loop is ours.
"""

from typing import Any

import torch
from diffusers import (
    AutoencoderKLQwenImage,
    FlowMatchEulerDiscreteScheduler,
    QwenImagePipeline,
    QwenImageTransformer2DModel,
)
from torch import Tensor
from torch.nn.functional import pad

from digen_core.config.model import ModelConfig
from digen_core.errors import ConfigError
from digen_core.models.pipeline_policy import PipelinePolicy, with_latent_statistics
from digen_core.models.policy import Condition
from digen_core.models.schedules import sigmas_shifted_by_size
from digen_core.models.tiny.sizes import LATENT_CHANNELS, TEXT_WIDTH, TransformerSize


class QwenImagePolicy(PipelinePolicy):
    """A Qwen-Image pipeline as a Policy."""

    pipeline_class = QwenImagePipeline
    vae_class = AutoencoderKLQwenImage
    uses_cfg = True

    @classmethod
    def tiny(cls, size: TransformerSize, kind: str = "") -> QwenImagePipeline:
        """Build a pipeline with random weights: latents of 4 channels, 1/8 of the image's sides."""
        from digen_core.models.tiny import parts, tokenizers

        tokenizer = tokenizers.qwen_tokenizer()
        return QwenImagePipeline(
            scheduler=FlowMatchEulerDiscreteScheduler(
                use_dynamic_shifting=True,
                base_shift=0.5,
                max_shift=0.9,
                base_image_seq_len=256,
                max_image_seq_len=8192,
                shift_terminal=0.02,
            ),
            vae=parts.qwen_vae(LATENT_CHANNELS),
            text_encoder=parts.qwen_vl(tokenizer, TEXT_WIDTH),
            tokenizer=tokenizer,
            transformer=QwenImageTransformer2DModel(
                **size.settings,
                in_channels=4 * LATENT_CHANNELS,
                out_channels=LATENT_CHANNELS,
                joint_attention_dim=TEXT_WIDTH,
                axes_dims_rope=size.axes,
            ),
        )

    def __init__(self, pipeline: Any, config: ModelConfig, device: torch.device) -> None:
        super().__init__(pipeline, config, device)
        if pipeline.tokenizer is not None:
            # What stands before the prompt is dropped again: 34 tokens with Qwen2.5-VL's tokenizer,
            # a number that diffusers writes down but does not save.
            before, _ = pipeline.prompt_template_encode.split("{}")
            pipeline.prompt_template_encode_start_idx = len(pipeline.tokenizer(before).input_ids)

    def shape_of_latent(self) -> tuple[int, ...]:
        """Return (tokens, channels); pairs of rows and columns are packed into a token."""
        if self.transformer.config.guidance_embeds:
            raise ConfigError(
                f"model.path {self.config.path} is a Qwen-Image with embedded guidance; "
                "use one without, as Qwen-Image itself is"
            )
        side = self.side
        self._rows, self._columns = self.config.height // side, self.config.width // side
        return self._rows * self._columns, self.transformer.config.in_channels

    def wrapped(self, prompts: list[str]) -> tuple[list[str], int]:
        """Return the prompts in the template; what stands before them is dropped again."""
        template = self.pipeline.prompt_template_encode
        texts = [template.format(prompt) for prompt in prompts]
        return texts, self.pipeline.prompt_template_encode_start_idx

    def embed(self, prompts: list[str]) -> Condition:
        """Return ``prompt_embeds`` [B, L, D] and ``mask`` [B, L], 1 for tokens and 0 for padding.

        The pipeline pads to the longest prompt only, and has no mask if nothing is padded.
        """
        length = self.config.max_sequence_length
        embeds, mask = self.pipeline.encode_prompt(
            prompt=prompts, device=self.device, max_sequence_length=length
        )
        if mask is None:
            mask = torch.ones(embeds.shape[:2], dtype=torch.int64, device=self.device)
        missing = length - embeds.shape[1]
        return {
            "prompt_embeds": pad(embeds, (0, 0, 0, missing)),
            "mask": pad(mask, (0, missing)),
        }

    def shapes_of_embeddings(self) -> dict[str, tuple[int, ...]]:
        """Return the shapes of a prompt's ``prompt_embeds`` and ``mask``."""
        length = self.config.max_sequence_length
        width = self.transformer.config.joint_attention_dim
        return {"prompt_embeds": (length, width), "mask": (length,)}

    def sigmas_of_family(self, num_steps: int) -> Tensor:
        """Return sigmas shifted by the image's size and stretched to the terminal sigma."""
        return sigmas_shifted_by_size(self.pipeline.scheduler, num_steps, self.latent_shape[0])

    def predict(self, x: Tensor, sigma: Tensor, condition: Condition) -> Tensor:
        """Return the velocities [B, tokens, channels]."""
        velocity: Tensor = self.transformer(
            hidden_states=x.to(self.dtype),
            timestep=sigma,
            encoder_hidden_states=condition["prompt_embeds"].to(self.dtype),
            encoder_hidden_states_mask=condition.get("mask"),
            img_shapes=[[(1, self._rows, self._columns)]] * len(x),
            return_dict=False,
        )[0]
        return velocity

    def guide(self, positive: Tensor, negative: Tensor) -> Tensor:
        """Return the guided velocity, each token as long as without guidance."""
        guided = super().guide(positive, negative)
        length, guided_length = (v.norm(dim=-1, keepdim=True) for v in (positive, guided))
        rescaled: Tensor = guided * (length / guided_length)
        return rescaled

    def vae_latents(self, x: Tensor) -> Tensor:
        """Return latents [B, z, 1, h, w]."""
        latents: Tensor = QwenImagePipeline._unpack_latents(
            x, self.config.height, self.config.width, self.pipeline.vae_scale_factor
        )
        return with_latent_statistics(latents, self.pipeline.vae.config)
