"""Wan 2.1 and 2.2 text-to-video: latents [B, z, F, h, w], guidance is classifier-free.

Wraps diffusers' WanPipeline; the denoising loop is ours. The timestep is in [0, 1000]. TI2V-5B of
Wan 2.2 has one per token, as an image that a video begins with would have another: without an image
they are all the same, and are given once per sample, which costs less. T2V-A14B has two experts.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from diffusers import AutoencoderKLWan, UniPCMultistepScheduler, WanPipeline, WanTransformer3DModel
from diffusers.pipelines.wan.pipeline_wan import prompt_clean
from torch import Tensor

from digen_core.config.model import ModelConfig
from digen_core.inputs.reading import read_json_object
from digen_core.models.expert_names import PARTS
from digen_core.models.experts import Experts, in_order, reaching
from digen_core.models.pipeline.latents import video_latent_shape, with_latent_statistics
from digen_core.models.pipeline.policy import PipelinePolicy
from digen_core.models.policy import Condition
from digen_core.models.schedules import scheduler_sigmas
from digen_core.models.tiny.sizes import LATENT_CHANNELS, TEXT_WIDTH, TransformerSize


class WanPolicy(PipelinePolicy):
    """A Wan pipeline as a Policy."""

    pipeline_class = WanPipeline
    vae_class = AutoencoderKLWan
    uses_cfg = True
    vae_in_float32 = True

    @classmethod
    def tiny(cls, size: TransformerSize, kind: str = "") -> WanPipeline:
        """Build a pipeline with random weights: latents of 4 channels, 1/8 of the image's sides."""
        is_ti2v = kind == "ti2v"

        def transformer() -> WanTransformer3DModel:
            return WanTransformer3DModel(
                **size.settings,
                in_channels=LATENT_CHANNELS,
                out_channels=LATENT_CHANNELS,
                text_dim=TEXT_WIDTH,
                freq_dim=64,
                ffn_dim=2 * size.width,
            )

        from digen_core.models.tiny import parts, tokenizers

        tokenizer = tokenizers.t5_tokenizer()
        return WanPipeline(
            scheduler=UniPCMultistepScheduler(
                prediction_type="flow_prediction",
                use_flow_sigmas=True,
                flow_shift=5.0 if is_ti2v else 3.0,
            ),
            vae=(parts.wan_2_2_vae if is_ti2v else parts.wan_vae)(LATENT_CHANNELS),
            text_encoder=parts.umt5(tokenizer, TEXT_WIDTH),
            tokenizer=tokenizer,
            transformer=transformer(),
            transformer_2=transformer() if kind == "a14b" else None,
            boundary_ratio=0.875 if kind == "a14b" else None,
            expand_timesteps=is_ti2v,
        )

    @classmethod
    def assembled(cls, config: ModelConfig, parts: Mapping[str, Any], folder: Path) -> WanPipeline:
        """Return the pipeline of two experts, if the folder has both: its index says what of."""
        if len(parts.keys() & set(PARTS.values())) == 1:
            return cls.pipeline_class(**parts)
        settings = read_json_object(folder / "model_index.json", "the model's")
        return cls.pipeline_class(**parts, boundary_ratio=settings.get("boundary_ratio"))

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
        """Return the prompts as the pipeline cleans them."""
        return [prompt_clean(prompt) for prompt in prompts], 0

    def embed(self, prompts: list[str]) -> Condition:
        """Return ``prompt_embeds`` [B, L, D], zero after the prompt; the model attends to that.

        The pipeline cleans the text with ftfy if that is installed: it must be everywhere.
        """
        prompt_embeds, _ = self.pipeline.encode_prompt(
            prompt=prompts,
            do_classifier_free_guidance=False,  # the negative prompt is embedded once, by itself
            max_sequence_length=self.config.max_sequence_length,
            device=self.device,
        )
        return {"prompt_embeds": prompt_embeds}

    def shapes_of_embeddings(self) -> dict[str, tuple[int, ...]]:
        """Return the shapes of a prompt's ``prompt_embeds``."""
        width = self.transformer.config.text_dim
        return {"prompt_embeds": (self.config.max_sequence_length, width)}

    def sigmas_of_family(self, num_steps: int) -> Tensor:
        """Return the scheduler's own sigmas, beginning at 1.

        Wan comes with UniPC, which begins at 1 - 1e-6 to keep a logarithm finite that only it takes
        and truncates timesteps to integers; here they are 1000 sigma.
        """
        sigmas = scheduler_sigmas(self.pipeline.scheduler, num_inference_steps=num_steps)
        return torch.where(sigmas > 1 - 2e-6, 1.0, sigmas)

    def expert_at(self, sigma: float) -> int:
        """Return 1 at low noise of two experts, else 0."""
        return int(isinstance(self.transformer, Experts) and sigma < self.transformer.boundary)

    def velocity(self, x: Tensor, sigma: Tensor, condition: Condition) -> Tensor:
        """Map latents [B, ...] at noise levels [B] to velocities [B, ...] in ``latent_dtype``.

        Of two experts each computes the rows on its side of the boundary. In gangs whose members
        compute together all rows are on one side, which `tasks.train` sees to.
        """
        experts = self.transformer
        if not isinstance(experts, Experts):
            return super().velocity(x, sigma, condition)
        sigma = sigma.to(self.device).expand(len(x))
        sides, parts = experts.sides(sigma), []
        for is_high, rows in sides:
            own = slice(None) if rows is None else rows
            of_rows = {name: value[own] for name, value in condition.items()}
            with experts.turn_of(is_high=is_high):
                parts.append(super().velocity(x[own], sigma[own], of_rows))
        velocity = in_order(parts, [rows for _, rows in sides])
        return reaching(velocity, experts.idle(sides))

    def guide(self, positive: Tensor, negative: Tensor) -> Tensor:
        """Return the guided velocity [B, ...], by the scale of the expert whose turn it is."""
        scale, low = self.config.guidance_scale, self.config.guidance_scale_2
        if low is not None and not self.transformer.is_high:
            scale = low
        return negative + scale * (positive - negative)

    def predict(self, x: Tensor, sigma: Tensor, condition: Condition) -> Tensor:
        """Return the velocities [B, z, F, h, w]."""
        velocity: Tensor = self.transformer(
            hidden_states=x.to(self.dtype),
            timestep=1000 * sigma,
            encoder_hidden_states=condition["prompt_embeds"].to(self.dtype),
            return_dict=False,
        )[0]
        return velocity

    def vae_latents(self, x: Tensor) -> Tensor:
        """Return latents [B, z, F, h, w]."""
        return with_latent_statistics(x, self.pipeline.vae.config)
