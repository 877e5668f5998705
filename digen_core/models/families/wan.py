"""Wan 2.1 and 2.2: videos of texts, or of texts and the images that they begin and end with.

Wraps diffusers' WanPipeline and WanImageToVideoPipeline; the denoising loop is ours. Latents are
[B, z, F, h, w], the timestep is in [0, 1000], guidance is classifier-free. The A14B models of Wan
2.2 have two experts. A model is shown the first image in one of two ways (`_first_is_given`):

- TI2V-5B of Wan 2.2 has a timestep per token, and 0 those of the first latent frame, which is the
  image's. Without an image all are the same, and are given once per sample, which costs less.
- I2V models have the latents of a video that goes on with grey, and which frames are given, as more
  channels; those of Wan 2.1 attend to CLIP's embedding of the image, too. In Wan 2.2 the last frame
  may be given like the first; of Wan 2.1 FLF2V takes both, and their embeddings.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from diffusers import (
    AutoencoderKLWan,
    UniPCMultistepScheduler,
    WanImageToVideoPipeline,
    WanPipeline,
    WanTransformer3DModel,
)
from diffusers.pipelines.wan.pipeline_wan import prompt_clean
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import pad

from digen_core.config.families import FAMILIES
from digen_core.config.model import ModelConfig
from digen_core.errors import ConfigError
from digen_core.inputs.reading import read_json_object
from digen_core.models.expert_names import PARTS
from digen_core.models.experts import Experts, in_order, reaching
from digen_core.models.pipeline.conditions import SOURCE, rows_of
from digen_core.models.pipeline.latents import (
    video_latent_shape,
    with_latent_statistics,
    without_latent_statistics,
)
from digen_core.models.pipeline.policy import PipelinePolicy
from digen_core.models.policy import Condition
from digen_core.models.schedules import scheduler_sigmas
from digen_core.models.tiny.sizes import LATENT_CHANNELS, TEXT_WIDTH, TransformerSize

EMBEDDED: Final = "source_embeds"  # CLIP's of the source image
EMBEDDED_TOKENS: Final = 257  # of CLIP-H: a class and 16 x 16 patches
TEXT_TOKENS: Final = 512
"""Of a prompt where CLIP's are before them: attention in diffusers takes what is before the last
512 for the image's."""
TEMPORAL: Final = 4
"""Frames of a latent frame: as many channels of I2V models say which of them are given."""


class WanPolicy(PipelinePolicy):
    """A Wan pipeline as a Policy."""

    pipeline_class = WanPipeline
    vae_class = AutoencoderKLWan
    uses_cfg = True
    vae_in_float32 = True

    @classmethod
    def tiny(cls, size: TransformerSize, kind: str = "") -> WanPipeline | WanImageToVideoPipeline:
        """Build a pipeline with random weights: latents of 4 channels, 1/8 of the image's sides."""
        from digen_core.models.tiny import encoders, tokenizers, vaes

        attends, has_two = kind in ("i2v", "flf2v"), kind.endswith("a14b")
        is_i2v = attends or kind == "i2v-a14b"

        def transformer() -> WanTransformer3DModel:
            made = WanTransformer3DModel(
                **size.settings,
                in_channels=2 * LATENT_CHANNELS + TEMPORAL if is_i2v else LATENT_CHANNELS,
                out_channels=LATENT_CHANNELS,
                text_dim=TEXT_WIDTH,
                image_dim=TEXT_WIDTH if attends else None,
                added_kv_proj_dim=size.width if attends else None,
                pos_embed_seq_len=2 * EMBEDDED_TOKENS if kind == "flf2v" else None,
                freq_dim=64,
                ffn_dim=2 * size.width,
            )
            if kind == "flf2v":  # its positions are learned, from 0: images would be alike
                nn.init.normal_(made.condition_embedder.image_embedder.pos_embed, std=0.5)
            return made

        tokenizer, is_ti2v = tokenizers.t5_tokenizer(), kind == "ti2v"
        others = encoders.clip_vision(TEXT_WIDTH) if attends else {}
        return (WanImageToVideoPipeline if is_i2v else WanPipeline)(
            scheduler=UniPCMultistepScheduler(
                prediction_type="flow_prediction",
                use_flow_sigmas=True,
                flow_shift=5.0 if is_ti2v else 3.0,
            ),
            vae=(vaes.wan_2_2_vae if is_ti2v else vaes.wan_vae)(LATENT_CHANNELS),
            text_encoder=encoders.umt5(tokenizer, TEXT_WIDTH),
            tokenizer=tokenizer,
            transformer=transformer(),
            transformer_2=transformer() if has_two else None,
            boundary_ratio=0.875 if has_two else None,
            expand_timesteps=is_ti2v,
            **others,
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
        shape = video_latent_shape(
            self.config,
            channels=self.transformer.config.out_channels,
            spatial=self.pipeline.vae_scale_factor_spatial,
            temporal=self.pipeline.vae_scale_factor_temporal,
        )
        if self.config.source_image:
            self._check_images()
        is_last_given = self.config.num_source_images > 1
        if (self._first_is_given or is_last_given) and shape[1] == 1:
            raise ConfigError(
                f"model.num_frames is {self.config.num_frames}, and the first is the source image; "
                "use more, for a model that generates those behind it"
            )
        return shape

    def _check_images(self) -> None:
        """Check that the model is shown as many images of a prompt as the config says."""
        settings, number = self.transformer.config, self.config.max_source_images
        fewest = FAMILIES["wan"].fewest_images(settings)
        most = 1 if self._first_is_given or (settings.image_dim and fewest == 1) else 2
        if not fewest <= number <= most:
            raise ConfigError(
                f"model.max_source_images is {number}, but model.path {self.config.path} is shown "
                f"{'one image, which a video begins with' if most == 1 else 'the last frame, too'}"
                f"; use {most}"
            )

    @property
    def _first_is_given(self) -> bool:
        """Whether the first latent frame is that of the source image: no channel tells of it."""
        settings = self.transformer.config
        return self.config.source_image and settings.in_channels == settings.out_channels

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

    def embed_sources(self, shown: Sequence[NDArray[np.uint8]]) -> Condition:
        """Return CLIP's embeddings [B, L, D] of source images, if the model attends to them.

        Those of the last frame stand behind those of the first.
        """
        if self.transformer.config.image_dim is None:
            return {}
        images = [image for own in shown for image in own]
        embedded = self.pipeline.encode_image(images, self.device).to(self.dtype)
        return {EMBEDDED: embedded.unflatten(0, (len(shown), -1)).flatten(1, 2)}

    def latents_of_sources(self, images: Tensor) -> Tensor:
        """Return what the transformer is shown of images [B, n, 3, H, W]: [B, c, F', h, w].

        Of a video that goes on with grey, up to the last frame if that is given, the latents,
        behind `TEMPORAL` channels that are 1 where frames are given; or the latents of the image
        alone, one frame.
        """
        vae, frames = self.pipeline.vae, images.transpose(1, 2)
        if not self._first_is_given:
            first, last = frames[:, :, :1], frames[:, :, 1:]
            num_grey = self.config.num_frames - frames.shape[2]
            grey = first.new_zeros(1).expand(*first.shape[:2], num_grey, *first.shape[3:])
            frames = torch.cat([first, grey, last], dim=2)
        latents = without_latent_statistics(vae.encode(frames).latent_dist.mode(), vae.config)
        if self._first_is_given:
            return latents.to(self.dtype)
        given = torch.zeros_like(latents[:, :1]).repeat(1, TEMPORAL, 1, 1, 1)
        given[:, :, 0] = 1
        if images.shape[1] > 1:
            given[:, -1, -1] = 1  # the last of the last latent frame's
        return torch.cat([given, latents], dim=1).to(self.dtype)

    def shapes_of_sources(self) -> dict[str, tuple[int, ...]]:
        """Return the shapes of what is shown of source images, and of CLIP's embeddings."""
        settings, (channels, *frames_and_sides) = self.transformer.config, self.latent_shape
        if self._first_is_given:
            return {SOURCE: (channels, 1, *frames_and_sides[1:])}
        shapes = {SOURCE: (settings.in_channels - channels, *frames_and_sides)}
        if settings.image_dim is not None:
            tokens = self.config.max_source_images * EMBEDDED_TOKENS
            shapes[EMBEDDED] = (tokens, settings.image_dim)
        return shapes

    def sigmas_of_family(self, num_steps: int) -> Tensor:
        """Return the scheduler's own sigmas, beginning at 1.

        Wan comes with UniPC, which begins at 1 - 1e-6 to keep a logarithm finite that only it takes
        and truncates timesteps to integers; here they are 1000 sigma.
        """
        sigmas = scheduler_sigmas(self.pipeline.scheduler, num_inference_steps=num_steps)
        return torch.where(sigmas > 1 - 2e-6, 1.0, sigmas)

    def part_at(self, sigma: float) -> int:
        """Return which part of a batch a noise level belongs to; each expert has its own."""
        part = super().part_at(sigma)
        if not isinstance(self.transformer, Experts):
            return part
        return 2 * part + (sigma < self.transformer.boundary)

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
            with experts.turn_of(is_high=is_high):
                parts.append(super().velocity(x[own], sigma[own], rows_of(condition, own)))
        velocity = in_order(parts, [rows for _, rows in sides])
        return reaching(velocity, experts.idle(sides))

    @property
    def guidance_scale(self) -> float:
        """The scale of the expert whose turn it is; without guidance neither has another one."""
        high, low = self.config.guidance_scale, self.config.guidance_scale_2
        if low is None or high <= self.guides_above or self.transformer.is_high:
            return high
        return low

    def predict(self, x: Tensor, sigma: Tensor, condition: Condition) -> Tensor:
        """Return the velocities [B, z, F, h, w].

        A first latent frame that is given moves on a straight line to what it is, whatever noise
        is in ``x``: it depends on no weights, and ends there.
        """
        shown, timestep = x.to(self.dtype), 1000 * sigma
        if self._first_is_given:
            shown = torch.cat([condition[SOURCE].to(self.dtype), shown[:, :, 1:]], dim=2)
            timestep = self._timestep_of_tokens(timestep, shown)
        elif SOURCE in condition:
            shown = torch.cat([shown, condition[SOURCE].to(self.dtype)], dim=1)
        text, embedded = condition["prompt_embeds"].to(self.dtype), condition.get(EMBEDDED)
        if embedded is not None:  # an image a row, as the transformer wants them of two
            embedded = embedded.to(self.dtype).unflatten(1, (-1, EMBEDDED_TOKENS)).flatten(0, 1)
            text = pad(text, (0, 0, 0, TEXT_TOKENS - text.shape[1]))
        velocity: Tensor = self.transformer(
            hidden_states=shown,
            timestep=timestep,
            encoder_hidden_states=text,
            encoder_hidden_states_image=embedded,
            return_dict=False,
        )[0]
        if not self._first_is_given:
            return velocity
        first = (x[:, :, :1] - condition[SOURCE]) / sigma.view(-1, 1, 1, 1, 1)
        return torch.cat([first, velocity[:, :, 1:].to(first.dtype)], dim=2)

    def _timestep_of_tokens(self, timestep: Tensor, shown: Tensor) -> Tensor:
        """Return timesteps [B, tokens] of [B]: 0 in the first frame of latents [B, z, F, h, w]."""
        _, rows, columns = self.transformer.config.patch_size
        _, _, frames, height, width = shown.shape
        in_frame = (height // rows) * (width // columns)
        of_tokens = timestep[:, None].repeat(1, frames * in_frame)
        of_tokens[:, :in_frame] = 0
        return of_tokens

    def vae_latents(self, x: Tensor) -> Tensor:
        """Return latents [B, z, F, h, w]."""
        return with_latent_statistics(x, self.pipeline.vae.config)
