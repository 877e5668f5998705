"""HunyuanVideo 1.5: latents [B, z, F, h, w], classifier-free guidance, timestep in [0, 1000].

Wraps diffusers' HunyuanVideo15Pipeline and HunyuanVideo15ImageToVideoPipeline; the denoising loop
is ours, and so is the way through the transformer (`digen_core.models.passes.hunyuan15`). Two
encoders read a prompt: Qwen2.5-VL all of it, in a template, and ByT5 the words in quotation marks,
which are to be drawn; most prompts have none. A model for images is shown the first frame's latents
as more channels, and SigLIP's states of it.
"""

import logging
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import torch
from diffusers import (
    AutoencoderKLHunyuanVideo15,
    ClassifierFreeGuidance,
    FlowMatchEulerDiscreteScheduler,
    HunyuanVideo15ImageToVideoPipeline,
    HunyuanVideo15Pipeline,
    HunyuanVideo15Transformer3DModel,
)
from diffusers.loaders import HunyuanVideoLoraLoaderMixin
from diffusers.pipelines.hunyuan_video1_5.pipeline_hunyuan_video1_5 import format_text_input
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torch.nn.functional import pad

from digen_core.config.model import ModelConfig
from digen_core.errors import ConfigError
from digen_core.models.families.hunyuan_video import HunyuanPolicy
from digen_core.models.passes.hunyuan15 import compute_so
from digen_core.models.pipeline.conditions import SOURCE
from digen_core.models.pipeline.few_steps import check_named
from digen_core.models.pipeline.latents import video_latent_shape
from digen_core.models.policy import Condition
from digen_core.models.tiny.sizes import LATENT_CHANNELS, TEXT_WIDTH, TransformerSize

# Each guider that is made warns that guiders are experimental; digen reads one setting of it.
logging.getLogger("diffusers.guiders.guider_utils").setLevel(logging.ERROR)

GLYPH_TOKENS: Final = 256  # of the words to be drawn: the pipeline's tokenizer_2_max_length
IMAGE_TOKENS: Final = 729  # of SigLIP at 384 x 384: 27 x 27 patches
EMBEDDED: Final = "source_embeds"  # SigLIP's states of the source image
_PLAIN: Final = {
    "guidance_rescale": 0.0,
    "use_original_formulation": False,
    "start": 0.0,
    "stop": 1.0,
    "enabled": True,
}
"""Settings of a model's guider, but for its scale, which the config says."""


class _TextToVideo(HunyuanVideo15Pipeline, HunyuanVideoLoraLoaderMixin):  # type: ignore[misc]
    """The pipeline, which by itself loads no LoRA."""


class _ImageToVideo(HunyuanVideo15ImageToVideoPipeline, HunyuanVideoLoraLoaderMixin):  # type: ignore[misc]
    """The same of videos that begin with an image."""


class HunyuanVideo15Policy(HunyuanPolicy):
    """A HunyuanVideo 1.5 pipeline as a Policy."""

    pipeline_class = _TextToVideo
    vae_class = AutoencoderKLHunyuanVideo15
    uses_cfg = True

    @classmethod
    def tiny(cls, size: TransformerSize, kind: str = "") -> Any:
        """Build a pipeline with random weights: latents of 4 channels, 1/16 of the video's sides.

        Its transformer has 4.6 million, as ByT5's states go through a layer of 2048 in any.
        """
        from digen_core.models.tiny import encoders, tokenizers, vaes

        tokenizer, byte_tokenizer = tokenizers.qwen_chat_tokenizer(), tokenizers.byt5_tokenizer()
        others = encoders.siglip(TEXT_WIDTH) if kind else {}
        task, _, distilled = kind.partition("-")
        return (HunyuanVideo15ImageToVideoPipeline if kind else HunyuanVideo15Pipeline)(
            scheduler=FlowMatchEulerDiscreteScheduler(shift=5.0),
            vae=vaes.hunyuan_15_vae(LATENT_CHANNELS),
            text_encoder=encoders.qwen_vl_text(tokenizer, TEXT_WIDTH),
            tokenizer=tokenizer,
            text_encoder_2=encoders.t5(byte_tokenizer, TEXT_WIDTH),
            tokenizer_2=byte_tokenizer,
            guider=ClassifierFreeGuidance(guidance_scale=6.0),
            transformer=HunyuanVideo15Transformer3DModel(
                **size.settings,
                in_channels=2 * LATENT_CHANNELS + 1,
                out_channels=LATENT_CHANNELS,
                num_refiner_layers=1,
                text_embed_dim=TEXT_WIDTH,
                text_embed_2_dim=TEXT_WIDTH,
                image_embed_dim=TEXT_WIDTH,
                rope_axes_dim=size.axes,
                task_type=task or "t2v",
                use_meanflow=bool(distilled),
            ),
            **others,
        )

    @classmethod
    def class_of(cls, config: ModelConfig) -> Any:
        """Return the class of a model's pipeline, with what loads LoRAs."""
        is_i2v = super().class_of(config) is HunyuanVideo15ImageToVideoPipeline
        return _ImageToVideo if is_i2v else _TextToVideo

    def __init__(self, pipeline: Any, config: ModelConfig, device: torch.device) -> None:
        super().__init__(pipeline, config, device)
        compute_so(self.transformer)
        pipeline.vae.enable_slicing()  # its mask of attention fits one sample only (diffusers 0.42)
        if pipeline.guider is not None:
            self._check_guider(pipeline.guider)
        if pipeline.tokenizer is not None:
            # What stands before the prompt is dropped again: with Qwen2.5-VL's tokenizer 108
            # tokens, a number that diffusers writes down but does not save.
            pipeline.prompt_template_encode_start_idx = self.wrapped([])[1]

    def _check_guider(self, guider: Any) -> None:
        found = {name: guider.config.get(name) for name in _PLAIN}
        if not isinstance(guider, ClassifierFreeGuidance) or found != _PLAIN:
            raise ConfigError(
                f"model.path {self.config.path} has a {type(guider).__name__} with {found} as its "
                f"guider; use a ClassifierFreeGuidance with {_PLAIN}"
            )

    def shape_of_latent(self) -> tuple[int, ...]:
        """Return (z, F, h, w)."""
        settings = self.transformer.config
        if settings.use_meanflow and not self.config.source_image:
            raise ConfigError(
                f"model.path {self.config.path} is a HunyuanVideo 1.5 for texts that is told the "
                "noise level at which a step ends, which its pipeline does not tell it; use one "
                "that is not"
            )
        check_named(self.config, settings)
        return video_latent_shape(
            self.config,
            channels=self.transformer.config.out_channels,
            spatial=self.pipeline.vae_scale_factor_spatial,
            temporal=self.pipeline.vae_scale_factor_temporal,
        )

    def wrapped(self, prompts: list[str]) -> tuple[list[str], int]:
        """Return the prompts in the chat; what stands before them is dropped again."""
        chats = format_text_input([*prompts, "{}"], self.pipeline.system_message)
        tokenizer = self.pipeline.tokenizer
        *texts, frame = tokenizer.apply_chat_template(
            chats, tokenize=False, add_generation_prompt=True
        )
        return texts, len(tokenizer(frame.partition("{}")[0]).input_ids)

    def embed(self, prompts: list[str]) -> Condition:
        """Return ``prompt_embeds`` [B, L, D] and ``glyph_prompt_embeds`` [B, L', D'], with masks.

        The glyphs are ByT5's states of the words in quotation marks; their mask is 0 without any.
        """
        self.pipeline.tokenizer_max_length = self.config.max_sequence_length
        embeds, mask, glyphs, glyph_mask = self.pipeline.encode_prompt(
            prompt=prompts, batch_size=len(prompts), device=self.device
        )
        return {
            "prompt_embeds": embeds,
            "mask": mask.long(),
            "glyph_prompt_embeds": glyphs,
            "glyph_mask": glyph_mask.long(),
        }

    def shapes_of_embeddings(self) -> dict[str, tuple[int, ...]]:
        """Return the shapes of a prompt's values of ``embed``."""
        settings, length = self.transformer.config, self.config.max_sequence_length
        return {
            "prompt_embeds": (length, settings.text_embed_dim),
            "mask": (length,),
            "glyph_prompt_embeds": (GLYPH_TOKENS, settings.text_embed_2_dim),
            "glyph_mask": (GLYPH_TOKENS,),
        }

    def embed_sources(self, shown: Sequence[NDArray[np.uint8]]) -> Condition:
        """Return SigLIP's states [B, L, D] of source images."""
        pipeline = self.pipeline
        images = [Image.fromarray(image) for (image,) in shown]
        found = pipeline._get_image_embeds(
            pipeline.image_encoder, pipeline.feature_extractor, images, self.device
        )
        return {EMBEDDED: found.to(self.dtype)}

    def source_latents(self, images: Tensor) -> Tensor:
        """Return latents of videos of which images [B, 3, H, W] are the first frame, and a mask.

        They are [B, z + 1, F, h, w]: 0 behind the first frame, and 1 in the last channel of that.
        """
        vae = self.pipeline.vae
        first = vae.encode(images[:, :, None]).latent_dist.mode() * vae.config.scaling_factor
        given = torch.cat([first, torch.ones_like(first[:, :1])], dim=1)
        return pad(given, (0, 0, 0, 0, 0, self.latent_shape[1] - 1))

    def shapes_of_sources(self) -> dict[str, tuple[int, ...]]:
        """Return the shapes of ``source_latents`` and of SigLIP's states."""
        channels, *frames_and_sides = self.latent_shape
        return {
            SOURCE: (channels + 1, *frames_and_sides),
            EMBEDDED: (IMAGE_TOKENS, self.transformer.config.image_embed_dim),
        }

    def predict(self, x: Tensor, sigma: Tensor, condition: Condition) -> Tensor:
        """Return the velocities [B, z, F, h, w].

        Without a source image the channels for what is given of the video, and which frames are,
        are 0: nothing is.
        """
        settings = self.transformer.config
        given, images = condition.get(SOURCE), condition.get(EMBEDDED)
        if given is None or images is None:
            channels = settings.in_channels - settings.out_channels
            given = x.new_zeros(len(x), channels, *x.shape[2:])
            images = x.new_zeros(len(x), 0, settings.image_embed_dim)
        velocity: Tensor = self.transformer(
            hidden_states=torch.cat([x.to(self.dtype), given.to(self.dtype)], dim=1),
            timestep=1000 * sigma,
            text=condition["prompt_embeds"].to(self.dtype),
            mask=condition.get("mask"),
            glyphs=condition["glyph_prompt_embeds"].to(self.dtype),
            glyph_mask=condition.get("glyph_mask"),
            images=images.to(self.dtype),
            ends=1000 * self._ends(sigma) if settings.use_meanflow else None,
        )
        return velocity

    def _ends(self, sigma: Tensor) -> Tensor:
        """Return the noise levels at which the steps end that begin at some [B]: the next named.

        It compares numbers on the device, with those that float32 has.
        """
        ends = torch.zeros_like(sigma)
        for level in reversed(self.config.sigmas):
            level = float(np.float32(level))
            ends = torch.where(sigma > level, level, ends)
        return ends
