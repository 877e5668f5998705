"""Qwen-Image 2.1: packed latents [B, h w, z], texts of several lengths, timestep in [0, 1].

Wraps diffusers' QwenImage21Pipeline; the denoising loop is ours, and so is the way through the
transformer (`digen_core.models.passes.qwen21`). Its VAE makes colours and an opacity. Text encoder
and transformer are shown source images, if prompts come with them.
"""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any, ClassVar, Final

import numpy as np
import torch
from diffusers import (
    AutoencoderKLQwenImage21,
    FlowMatchEulerDiscreteScheduler,
    QwenImage21Pipeline,
    QwenImage21Transformer2DModel,
)
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn
from torch.nn.functional import pad
from transformers import Qwen3VLForConditionalGeneration, Qwen3VLProcessor

from digen_core.config.families import FAMILIES, mark_in
from digen_core.config.model import ModelConfig
from digen_core.errors import ConfigError, UserError
from digen_core.gang.context_parallel import Plan
from digen_core.inputs.reading import shown as quoted
from digen_core.inputs.text import number_of
from digen_core.models.passes.qwen21 import compute_so
from digen_core.models.pipeline.conditions import joined_rows
from digen_core.models.pipeline.latents import with_latent_statistics, without_latent_statistics
from digen_core.models.pipeline.policy import PipelinePolicy
from digen_core.models.policy import Condition
from digen_core.models.qwen_vl import (
    AROUND,
    MAX_RATIO,
    TINY_PATCH,
    PicturesAndTexts3,
    new_processor_3,
    processor_without_videos,
)
from digen_core.models.schedules import dynamic_shift, scheduler_sigmas, sigmas_shifted_by_size
from digen_core.models.tiny.sizes import LATENT_CHANNELS, TEXT_WIDTH, TransformerSize

_BEGIN: Final = "<|im_start|>user\n"
"""What stands before a prompt or the first picture, behind what is dropped."""

_BEFORE: Final = "source_text_"
_TOKENS_BEFORE: Final = (8, 6)
"""Before the first picture and the others; before the tenth it is one more."""

_SETTINGS: Final = {"causal_condition": True, "patch_size": 1}  # of a transformer, as published


class _NoProcessor:
    """What the stock pipeline asks a processor when it is made, where there is none."""

    tokenizer: ClassVar["_NoProcessor"]

    def apply_chat_template(self, *_: Any, **__: Any) -> list[list[int]]:
        """Return no tokens of one chat."""
        return [[]]

    def encode(self, text: str) -> list[int]:
        """Return a token that stands for nothing."""
        return [-1]


_NoProcessor.tokenizer = _NoProcessor()


class _Pipeline(QwenImage21Pipeline):  # type: ignore[misc]
    """The pipeline, which may be without a processor, and whose tokenizer has a name."""

    def __init__(
        self,
        scheduler: FlowMatchEulerDiscreteScheduler,
        vae: AutoencoderKLQwenImage21,
        text_encoder: Qwen3VLForConditionalGeneration,
        processor: Qwen3VLProcessor,
        transformer: QwenImage21Transformer2DModel,
        sample_sigmas: list[float] | None = None,
    ) -> None:
        own = _NoProcessor() if processor is None else processor
        super().__init__(scheduler, vae, text_encoder, own, transformer, sample_sigmas)
        self.register_modules(processor=processor)

    @property
    def tokenizer(self) -> Any:
        """The processor's, if there is one."""
        return None if self.processor is None else self.processor.tokenizer


class QwenImage21Policy(PipelinePolicy):
    """A Qwen-Image 2.1 pipeline as a Policy."""

    pipeline_class = _Pipeline
    vae_class = AutoencoderKLQwenImage21
    guidance_argument = "true_cfg_scale"
    uses_cfg = True
    token_plan: ClassVar[Plan | None] = {}  # its forward pass deals the whole sequence

    @classmethod
    def tiny(cls, size: TransformerSize, kind: str = "") -> QwenImage21Pipeline:
        """Build a pipeline with random weights: latents of 4 channels, 1/8 of the image's sides."""
        from digen_core.models.tiny import encoders, tokenizers, vaes
        from digen_core.models.tiny.schedulers import qwen_scheduler

        tokenizer = tokenizers.qwen3_vl_tokenizer()
        transformer = QwenImage21Transformer2DModel(
            **size.settings,
            in_channels=LATENT_CHANNELS,
            out_channels=LATENT_CHANNELS,
            context_in_dim=TEXT_WIDTH,
            axes_dims_rope=size.axes,
        )
        # Of a new one gates are nearly closed, and a text or source image hardly shows.
        nn.init.normal_(transformer.modulation[1].weight, std=4 / size.width**0.5)
        pipeline = QwenImage21Pipeline(
            scheduler=qwen_scheduler(),
            vae=vaes.qwen_21_vae(LATENT_CHANNELS),
            text_encoder=encoders.qwen3_vl(tokenizer, TEXT_WIDTH, TINY_PATCH),
            processor=new_processor_3(tokenizer),
            transformer=transformer,
        )
        pipeline.register_to_config(processor=("transformers", "Qwen3VLProcessor"))
        return pipeline

    def __init__(self, pipeline: Any, config: ModelConfig, device: torch.device) -> None:
        self.reads_sources = config.source_image
        super().__init__(pipeline, config, device)
        compute_so(self.transformer)

    @classmethod
    def packages(cls, config: ModelConfig) -> tuple[str, ...]:
        """Return what the stock pipeline's processor takes."""
        return ("torchvision",)

    @classmethod
    def text_parts(cls, config: ModelConfig, kind: Any) -> dict[str, Any]:
        """Return the processor, where transformers cannot load its own."""
        processor = processor_without_videos(config, PicturesAndTexts3)
        return {} if processor is None else {"processor": processor}

    def shape_of_latent(self) -> tuple[int, ...]:
        """Return (tokens, channels); a token is a latent pixel."""
        settings = self.transformer.config
        found = {name: settings[name] for name in _SETTINGS}
        if found != _SETTINGS:
            raise ConfigError(
                f"model.path {self.config.path} is a Qwen-Image 2.1 with {found}; use one with "
                f"{_SETTINGS}, as the published ones are"
            )
        sides = self.config.height, self.config.width
        if self.reads_sources and max(sides) > MAX_RATIO * min(sides):
            raise ConfigError(
                f"model.height x model.width is {sides[0]} x {sides[1]}; this model is shown "
                f"images of at most {MAX_RATIO} : 1"
            )
        pixels = int(self.pipeline.vae.config.scale_factor_spatial)
        self._grid = self.config.height // pixels, self.config.width // pixels
        return self._grid[0] * self._grid[1], settings.in_channels

    def wrapped(self, prompts: list[str]) -> tuple[list[str], int]:
        """Return the prompts in the template; what stands before them is dropped again."""
        texts = [self.pipeline.prompt_template_t2i.format(prompt or " ") for prompt in prompts]
        return texts, self.pipeline._drop_idx

    def num_tokens(self, prompts: list[str], num_images: Sequence[int] = ()) -> list[int]:
        """Return how many tokens each prompt takes; what is before a picture, and it, do not count.

        Behind the last one comes a token that ends it, in place of what begins the user's part.
        """
        counts, tokenizer = super().num_tokens(prompts), self.pipeline.tokenizer
        if tokenizer is None or not any(num_images):
            return counts
        fewer = len(tokenizer(_BEGIN).input_ids) - len(tokenizer(AROUND[1]).input_ids)
        return [
            count - fewer * bool(shown) for count, shown in zip(counts, num_images, strict=True)
        ]

    def embed(self, prompts: list[str]) -> Condition:
        """Return ``prompt_embeds`` [B, L, D] and ``mask`` [B, L], 1 for tokens and 0 for padding.

        Each prompt is read alone: beside longer ones the text encoder would have it at other
        positions, which round otherwise.

        Raises:
            UserError: a prompt has the mark of a picture or video in it, which stands for one.
        """
        return joined_rows([self._embedded(prompt, ()) for prompt in prompts])

    def embed_beside(self, prompts: list[str], shown: Sequence[NDArray[np.uint8]]) -> Condition:
        """Embed prompts, if source images [n, H, W, 3] come with each, behind those."""
        if not self.reads_sources:
            return self.embed(prompts)
        pairs = zip(prompts, shown, strict=True)
        return joined_rows([self._embedded(prompt, pixels) for prompt, pixels in pairs])

    def embed_sources(self, shown: Sequence[NDArray[np.uint8]]) -> Condition:
        """Return states [B, P, D] of the text before each source image, the same for all prompts.

        Those of the images themselves are not read: the transformer is shown latents.
        """
        rows = []
        for pixels in shown:
            texts = self._texts(" ", pixels)[:-1]
            rows.append({f"{_BEFORE}{place}": own for place, own in enumerate(texts)})
        return joined_rows(rows)

    def _texts(self, prompt: str, pixels: Iterable[NDArray[np.uint8]]) -> list[Tensor]:
        """Return states [1, ..., D] of the text before each of n images, and of that behind."""
        images = [Image.fromarray(own) for own in pixels] or None
        embeds, _, slots = self.pipeline.encode_prompt(
            prompt=[prompt], image=images, device=self.device
        )
        is_text = (~slots[0].bool()).tolist()
        ends = [
            0,
            *(place for place in range(1, len(is_text)) if is_text[place] != is_text[place - 1]),
        ]
        runs = pairwise([*ends, len(is_text)])
        return [embeds[:, start:end] for start, end in runs if is_text[start]]

    def _embedded(self, prompt: str, pixels: Iterable[NDArray[np.uint8]]) -> Condition:
        if mark := mark_in(prompt, FAMILIES[self.config.family]):
            raise UserError(f"the prompt {quoted(prompt)} {mark}")
        length = self.config.max_sequence_length
        embeds = self._texts(prompt, pixels)[-1][:, :length]
        mask = torch.ones(embeds.shape[:2], dtype=torch.int64, device=self.device)
        missing = length - embeds.shape[1]
        return {"prompt_embeds": pad(embeds, (0, 0, 0, missing)), "mask": pad(mask, (0, missing))}

    def shapes_of_embeddings(self) -> dict[str, tuple[int, ...]]:
        """Return the shapes of a prompt's ``prompt_embeds`` and ``mask``."""
        length = self.config.max_sequence_length
        width = self.transformer.config.context_in_dim
        return {"prompt_embeds": (length, width), "mask": (length,)}

    def shapes_of_sources(self) -> dict[str, tuple[int, ...]]:
        """Return the shapes of a prompt's latents of source images, and of the texts before."""
        width, tokenizer = self.transformer.config.context_in_dim, self.pipeline.tokenizer
        shapes = super().shapes_of_sources()
        for place in range(self.config.max_source_images):
            length = _TOKENS_BEFORE[place > 0]  # with the published tokenizer
            if tokenizer is not None:
                begin = f"{AROUND[1]} " if place else _BEGIN
                length = len(tokenizer(f"{begin}<image{place + 1}>{AROUND[0]}").input_ids)
            shapes[f"{_BEFORE}{place}"] = length, width
        return shapes

    def image_latents(self, images: Tensor) -> Tensor:
        """Return the packed latents [B, tokens, channels] of images, which are opaque."""
        vae = self.pipeline.vae
        opaque = torch.cat([images, torch.ones_like(images[:, :1])], dim=1).unsqueeze(2)
        latents = vae.encode(opaque).latent_dist.mode()
        scaled = without_latent_statistics(latents, vae.config)
        packed: Tensor = scaled.flatten(2).transpose(1, 2).contiguous()
        return packed

    def sigmas_of_family(self, num_steps: int) -> Tensor:
        """Return sigmas shifted by the image's size and stretched to the terminal sigma.

        Those of a model with few steps are its own, as it says.

        Raises:
            ConfigError: it has another number of steps.
        """
        scheduler, own = self.pipeline.scheduler, self.pipeline.config.sample_sigmas
        if own is None:
            return sigmas_shifted_by_size(scheduler, num_steps, self.latent_shape[0])
        if len(own) != num_steps:
            raise ConfigError(
                f"model.path {self.config.path} has noise levels of its own for "
                f"{number_of(len(own), 'step')}, but is asked for {num_steps}; use "
                f"{len(own)}, or set model.shift"
            )
        mu = dynamic_shift(scheduler, self.latent_shape[0])
        return scheduler_sigmas(scheduler, sigmas=own, mu=mu)

    def predict(self, x: Tensor, sigma: Tensor, condition: Condition) -> Tensor:
        """Return the velocities [B, tokens, channels]."""
        shown = self.with_source(x, condition)
        velocity: Tensor = self.transformer(
            hidden_states=torch.cat([shown[:, x.shape[1] :], shown[:, : x.shape[1]]], dim=1),
            timestep=sigma,
            text=condition["prompt_embeds"].to(self.dtype),
            mask=condition.get("mask"),
            grid=self._grid,
            before=[
                condition[f"{_BEFORE}{place}"].to(self.dtype)
                for place in range(shown.shape[1] // x.shape[1] - 1)
            ],
        )
        return velocity

    def unpacked(self, x: Tensor) -> Tensor:
        """Return latents [B, z, 1, h, w] at their own scale."""
        latents: Tensor = x.transpose(1, 2).unflatten(2, (1, *self._grid))
        return latents

    def vae_latents(self, x: Tensor) -> Tensor:
        """Return latents [B, z, 1, h, w]."""
        return with_latent_statistics(self.unpacked(x), self.pipeline.vae.config)

    def colours(self, pixels: Tensor) -> Tensor:
        """Return what is seen of pixels [B, 4, 1, H, W] with an opacity: [B, 3, 1, H, W], on white.

        So its text encoder is shown pictures with one, too.
        """
        seen, opacity = pixels.split([3, 1], dim=1)
        found: Tensor = 1 - opacity + opacity * seen
        return found
