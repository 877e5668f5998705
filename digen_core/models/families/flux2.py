"""FLUX.2: packed latents [B, (h/2)(w/2), 4z], text without a mask, timestep in [0, 1].

Wraps diffusers' Flux2KleinPipeline (klein: classifier-free guidance, or none where it is distilled)
and Flux2Pipeline (dev: embedded guidance); the denoising loop is ours.
"""

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, Self

import numpy as np
import torch
from diffusers import (
    AutoencoderKLFlux2,
    DiffusionPipeline,
    FlowMatchEulerDiscreteScheduler,
    Flux2KleinPipeline,
    Flux2Pipeline,
    Flux2Transformer2DModel,
)
from diffusers.pipelines.flux2.pipeline_flux2 import compute_empirical_mu, format_input
from torch import Tensor

from digen_core.config.model import ModelConfig
from digen_core.errors import ConfigError
from digen_core.gang.members import ALONE, Gang
from digen_core.inputs.reading import read_json_object
from digen_core.models.chat import as_chats
from digen_core.models.pipeline.policy import PipelinePolicy
from digen_core.models.policy import Condition, Part
from digen_core.models.schedules import scheduler_sigmas
from digen_core.models.tiny.sizes import LATENT_CHANNELS, VAE_CHANNELS, TransformerSize

_PIPELINES: Final = {kind.__name__: kind for kind in (Flux2KleinPipeline, Flux2Pipeline)}
_STREAMS_OF_TEXT: Final = 3  # layers of the text encoder whose states are put side by side
_BETWEEN_IMAGES: Final = 10  # in time, as the pipeline places those that it is shown
_TINY_WIDTH: Final = 16  # of its text encoder, which has many layers


class Flux2Policy(PipelinePolicy):
    """A FLUX.2 pipeline as a Policy."""

    pipeline_class = Flux2KleinPipeline
    vae_class = AutoencoderKLFlux2
    uses_cfg = True

    @classmethod
    def tiny(cls, size: TransformerSize, kind: str = "") -> Flux2KleinPipeline:
        """Build a pipeline with random weights: latents of 4 channels, 1/8 of the image's sides."""
        from digen_core.models.tiny import encoders, tokenizers, vaes

        tokenizer = tokenizers.qwen3_tokenizer()
        return Flux2KleinPipeline(
            scheduler=FlowMatchEulerDiscreteScheduler(shift=3.0, use_dynamic_shifting=True),
            vae=vaes.flux2_vae(VAE_CHANNELS, LATENT_CHANNELS),
            text_encoder=encoders.qwen3(tokenizer, _TINY_WIDTH, layers=28),
            tokenizer=tokenizer,
            transformer=cls.tiny_transformer(size, guidance_embeds=False),
        )

    @classmethod
    def tiny_transformer(
        cls, size: TransformerSize, *, guidance_embeds: bool
    ) -> Flux2Transformer2DModel:
        """Build a transformer with random weights, of klein or, with guidance embedded, of dev."""
        return Flux2Transformer2DModel(
            **size.settings,
            in_channels=4 * LATENT_CHANNELS,
            num_single_layers=size.blocks,
            joint_attention_dim=_STREAMS_OF_TEXT * _TINY_WIDTH,
            guidance_embeds=guidance_embeds,
            axes_dims_rope=4 * (size.head // 4,),
        )

    def __init__(self, pipeline: Any, config: ModelConfig, device: torch.device) -> None:
        super().__init__(pipeline, config, device)
        self._is_klein = isinstance(pipeline, Flux2KleinPipeline)
        is_distilled = self._is_klein and pipeline.config.is_distilled
        self.guided = self.guided and self._is_klein and not is_distilled

    @classmethod
    def load(cls, config: ModelConfig, parts: frozenset[Part], gang: Gang = ALONE) -> Self:
        """Load the named parts of a folder or hub id.

        Raises:
            OSError: a part is not there.
            ConfigError: the model has other sizes than the config asks for, an adapter does not fit
                it, or dev's processor takes a package that is not here.
        """
        if "text_encoders" in parts and find_spec("torchvision") is None:
            index = DiffusionPipeline.load_config(config.source, revision=config.revision)
            if "PixtralProcessor" in index.get("tokenizer", ()):
                raise ConfigError(
                    f"model.path {config.path} has the tokenizer PixtralProcessor, which takes "
                    "torchvision, and that is not installed here; install it"
                )
        return super().load(config, parts, gang)

    @classmethod
    def assembled(cls, config: ModelConfig, parts: Mapping[str, Any], folder: Path) -> Any:
        """Return the pipeline that the folder's index names, or else what its transformer is of."""
        if not (folder / "model_index.json").is_file():
            embeds = parts["transformer"].config.guidance_embeds
            return (Flux2Pipeline if embeds else Flux2KleinPipeline)(**parts)
        settings = read_json_object(folder / "model_index.json", "the model's")
        config.require_pipeline(settings)
        pipeline = _PIPELINES[settings["_class_name"]](**parts)
        pipeline.register_to_config(is_distilled=bool(settings.get("is_distilled")))
        return pipeline

    def shape_of_latent(self) -> tuple[int, ...]:
        """Return (tokens, channels); pairs of rows and columns are packed into a token."""
        side = self.side
        self._rows, self._columns = self.config.height // side, self.config.width // side
        return self._rows * self._columns, self.transformer.config.in_channels

    def wrapped(self, prompts: list[str]) -> tuple[list[str], int]:
        """Return klein's prompts in the template, all of which the transformer is shown."""
        return as_chats(self.pipeline.tokenizer, prompts, thinking=False), 0

    def num_tokens(self, prompts: list[str], num_images: Sequence[int] = ()) -> list[int]:
        """Return how many tokens each prompt takes, with the template round it."""
        tokenizer = self.pipeline.tokenizer
        if self._is_klein or tokenizer is None:
            return super().num_tokens(prompts)
        counts = []
        for chat in format_input(prompts, self.pipeline.system_message):
            made = tokenizer.apply_chat_template([chat], tokenize=True, return_dict=True)
            counts.append(len(made["input_ids"][0]))
        return counts

    def embed(self, prompts: list[str]) -> Condition:
        """Return ``prompt_embeds`` [B, L, 3 D]; padding is not masked."""
        prompt_embeds, _ = self.pipeline.encode_prompt(
            prompt=prompts, device=self.device, max_sequence_length=self.config.max_sequence_length
        )
        return {"prompt_embeds": prompt_embeds}

    def shapes_of_embeddings(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of a prompt's ``prompt_embeds``."""
        width = self.transformer.config.joint_attention_dim
        return {"prompt_embeds": (self.config.max_sequence_length, width)}

    def image_latents(self, images: Tensor) -> Tensor:
        """Return the packed latents [B, tokens, channels] of images."""
        vae = self.pipeline.vae
        patches = Flux2Pipeline._patchify_latents(vae.encode(images).latent_dist.mode())
        mean, deviation = _statistics(vae)
        packed: Tensor = Flux2Pipeline._pack_latents((patches - mean) / deviation)
        return packed

    def sigmas_of_family(self, num_steps: int) -> Tensor:
        """Return sigmas shifted by the image's size and the number of steps.

        A scheduler that has flow sigmas of its own spreads them itself.
        """
        scheduler = self.pipeline.scheduler
        mu = compute_empirical_mu(self.latent_shape[0], num_steps)
        if scheduler.config.get("use_flow_sigmas"):
            return scheduler_sigmas(scheduler, num_inference_steps=num_steps, mu=mu)
        return scheduler_sigmas(scheduler, sigmas=np.linspace(1.0, 1 / num_steps, num_steps), mu=mu)

    def predict(self, x: Tensor, sigma: Tensor, condition: Condition) -> Tensor:
        """Return the velocities [B, tokens, channels]."""
        embeds = condition["prompt_embeds"].to(self.dtype)
        guidance = None
        if not self._is_klein:
            guidance = self.embedded_guidance(sigma)
        shown = self.with_source(x, condition)
        end = _BETWEEN_IMAGES * (shown.shape[1] // x.shape[1])
        velocity: Tensor = self.transformer(
            hidden_states=shown,
            timestep=sigma,
            guidance=guidance,
            encoder_hidden_states=embeds,
            txt_ids=self._places(range(1), range(1), range(1), range(embeds.shape[1])),
            img_ids=self._places(
                range(0, end, _BETWEEN_IMAGES), range(self._rows), range(self._columns), range(1)
            ),
            return_dict=False,
        )[0]
        return velocity[:, : x.shape[1]]

    def _places(self, *axes: range) -> Tensor:
        """Return the places [1, tokens, 4] of tokens, which differ in time, row, column or text.

        They are made on the device, as the pipeline's are not: it computes on while it is told.
        """
        own = (torch.arange(i.start, i.stop, i.step, device=self.device) for i in axes)
        return torch.cartesian_prod(*own)[None]

    def unpacked(self, x: Tensor) -> Tensor:
        """Return latents [B, z, h, w] at their own scale, that of the VAE's batch norm."""
        return self._as_pixels(self._patches(x))

    def vae_latents(self, x: Tensor) -> Tensor:
        """Return latents [B, z, h, w], with the statistics of the VAE's batch norm."""
        patches, (mean, deviation) = self._patches(x), _statistics(self.pipeline.vae)
        return self._as_pixels(patches * deviation.to(patches) + mean.to(patches))

    def _patches(self, x: Tensor) -> Tensor:
        """Return tokens [B, tokens, 4 z] where they belong, [B, 4 z, h / 2, w / 2]."""
        return x.transpose(1, 2).reshape(len(x), -1, self._rows, self._columns)

    @staticmethod
    def _as_pixels(patches: Tensor) -> Tensor:
        latents: Tensor = Flux2Pipeline._unpatchify_latents(patches)
        return latents


def _statistics(vae: AutoencoderKLFlux2) -> tuple[Tensor, Tensor]:
    """Return mean and deviation of latents, [1, C, 1, 1], from the VAE's batch norm."""
    mean, variance = (own.view(1, -1, 1, 1) for own in (vae.bn.running_mean, vae.bn.running_var))
    return mean, torch.sqrt(variance + vae.config.batch_norm_eps)
