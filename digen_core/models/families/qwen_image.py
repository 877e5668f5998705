"""Qwen-Image: packed latents [B, (h/2)(w/2), 4z], norm-keeping guidance, timestep in [0, 1].

Wraps diffusers' QwenImagePipeline, QwenImageEditPipeline and QwenImageEditPlusPipeline, whose text
encoder is shown the source image, too; the denoising loop is ours.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from diffusers import (
    AutoencoderKLQwenImage,
    QwenImageEditPipeline,
    QwenImageEditPlusPipeline,
    QwenImagePipeline,
    QwenImageTransformer2DModel,
)
from diffusers.pipelines.qwenimage.pipeline_qwenimage_edit_plus import (
    CONDITION_IMAGE_SIZE,
    calculate_dimensions,
)
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torch.nn.functional import pad

from digen_core.config.families import FAMILIES, mark_in
from digen_core.config.model import ModelConfig
from digen_core.errors import ConfigError, UserError
from digen_core.inputs.reading import read_json_object
from digen_core.inputs.reading import shown as quoted
from digen_core.models.passes.qwen import compute_so
from digen_core.models.pipeline.latents import with_latent_statistics, without_latent_statistics
from digen_core.models.pipeline.policy import PipelinePolicy
from digen_core.models.policy import Condition
from digen_core.models.qwen_vl import (
    AROUND,
    MAX_RATIO,
    PICTURE,
    new_processor,
    processor_without_videos,
    tokens_of_picture,
)
from digen_core.models.schedules import sigmas_shifted_by_size
from digen_core.models.tiny.sizes import LATENT_CHANNELS, TEXT_WIDTH, TransformerSize

_PIPELINES: Final = {
    kind.__name__: kind
    for kind in (QwenImagePipeline, QwenImageEditPipeline, QwenImageEditPlusPipeline)
}
_POSITIONS: Final = 4096  # that the transformer has a table of
_KINDS: Final = {"edit": QwenImageEditPipeline, "edit-plus": QwenImageEditPlusPipeline}


def _names(number: int) -> str:
    """Return what QwenImageEditPlusPipeline puts before a prompt with so many pictures."""
    picture = PICTURE.join(AROUND)
    return "".join(f"Picture {place}: {picture}" for place in range(1, number + 1))


class QwenImagePolicy(PipelinePolicy):
    """A Qwen-Image pipeline as a Policy."""

    pipeline_class = QwenImagePipeline
    vae_class = AutoencoderKLQwenImage
    guidance_argument = "true_cfg_scale"
    uses_cfg = True

    @classmethod
    def tiny(cls, size: TransformerSize, kind: str = "") -> Any:
        """Build a pipeline with random weights: latents of 4 channels, 1/8 of the image's sides."""
        from digen_core.models.tiny import encoders, tokenizers, vaes
        from digen_core.models.tiny.schedulers import qwen_scheduler

        tokenizer = tokenizers.qwen_vl_tokenizer() if kind else tokenizers.qwen_tokenizer()
        components = dict(
            scheduler=qwen_scheduler(),
            vae=vaes.qwen_vae(LATENT_CHANNELS),
            text_encoder=encoders.qwen_vl(tokenizer, TEXT_WIDTH),
            tokenizer=tokenizer,
            transformer=QwenImageTransformer2DModel(
                **size.settings,
                in_channels=4 * LATENT_CHANNELS,
                out_channels=LATENT_CHANNELS,
                joint_attention_dim=TEXT_WIDTH,
                axes_dims_rope=size.axes,
            ),
        )
        if not kind:
            return QwenImagePipeline(**components)
        pipeline = _KINDS[kind](**components, processor=new_processor(tokenizer))
        pipeline.register_to_config(processor=("transformers", "Qwen2VLProcessor"))
        return pipeline

    def __init__(self, pipeline: Any, config: ModelConfig, device: torch.device) -> None:
        self._is_edit = isinstance(pipeline, QwenImageEditPipeline)
        self._is_plus = isinstance(pipeline, QwenImageEditPlusPipeline)
        self.reads_sources = self._is_edit or self._is_plus
        super().__init__(pipeline, config, device)
        compute_so(self.transformer)
        if pipeline.tokenizer is not None:
            # What stands before the prompt and its pictures is dropped again: with Qwen2.5-VL's
            # tokenizer 34 tokens, of editors 64, numbers that diffusers writes down but does not
            # save.
            before = pipeline.prompt_template_encode.partition("{}")[0].partition(AROUND[0])[0]
            pipeline.prompt_template_encode_start_idx = len(pipeline.tokenizer(before).input_ids)

    @classmethod
    def packages(cls, config: ModelConfig) -> tuple[str, ...]:
        """Return what the processor of an editor takes."""
        return () if cls.class_of(config) is QwenImagePipeline else ("torchvision",)

    @classmethod
    def text_parts(cls, config: ModelConfig, kind: Any) -> dict[str, Any]:
        """Return the processor of an editor, where transformers cannot load its own."""
        processor = None if kind is QwenImagePipeline else processor_without_videos(config)
        return {} if processor is None else {"processor": processor}

    @classmethod
    def assembled(cls, config: ModelConfig, parts: Mapping[str, Any], folder: Path) -> Any:
        """Return the pipeline that the folder's index names; without one it is for texts."""
        if not (folder / "model_index.json").is_file():
            return QwenImagePipeline(**parts)
        index = read_json_object(folder / "model_index.json", "the model's")
        config.require_pipeline(index)
        name = index["_class_name"]
        others = {} if name == QwenImagePipeline.__name__ else {"processor": None}
        return _PIPELINES[name](**parts, **others)

    def shape_of_latent(self) -> tuple[int, ...]:
        """Return (tokens, channels); pairs of rows and columns are packed into a token."""
        if self.transformer.config.guidance_embeds:
            raise ConfigError(
                f"model.path {self.config.path} is a Qwen-Image with embedded guidance; "
                "use one without, as Qwen-Image itself is"
            )
        side = self.side
        self._rows, self._columns = self.config.height // side, self.config.width // side
        self._check_positions()
        return self._rows * self._columns, self.transformer.config.in_channels

    def _check_positions(self) -> None:
        """Check that the text encoder takes the image, and that the text has positions behind."""
        sides = self.config.height, self.config.width
        if self.reads_sources and max(sides) > MAX_RATIO * min(sides):
            raise ConfigError(
                f"model.height x model.width is {sides[0]} x {sides[1]}; this model is shown "
                f"images of at most {MAX_RATIO} : 1"
            )
        first = max(self._rows // 2, self._columns // 2)
        if first + self._length > _POSITIONS:
            raise ConfigError(
                f"model.height x model.width is {sides[0]} x {sides[1]}: the "
                f"text would be {self._length} tokens with the source images', but this "
                f"{self.config.family} model has positions for {_POSITIONS - first}; use a smaller "
                "size or model.max_sequence_length"
            )

    def wrapped(self, prompts: list[str]) -> tuple[list[str], int]:
        """Return the prompts in the template; what stands before them is dropped again."""
        template = self.pipeline.prompt_template_encode
        texts = [template.format(prompt) for prompt in prompts]
        return texts, self.pipeline.prompt_template_encode_start_idx

    def num_tokens(self, prompts: list[str], num_images: Sequence[int] = ()) -> list[int]:
        """Return how many tokens each prompt takes; those of pictures do not count, names do."""
        numbers = [1] * len(prompts) if self._is_edit else [0] * len(prompts)
        if self._is_plus and num_images:
            numbers = list(num_images)
            prompts = [_names(n) + text for text, n in zip(prompts, numbers, strict=True)]
        counts, of_picture = super().num_tokens(prompts), len(AROUND) + 1
        return [max(own - of_picture * n, 0) for own, n in zip(counts, numbers, strict=True)]

    def embed(self, prompts: list[str]) -> Condition:
        """Return ``prompt_embeds`` [B, L, D] and ``mask`` [B, L], 1 for tokens and 0 for padding.

        The pipeline pads to the longest prompt only, and has no mask if nothing is padded.
        """
        embeds, mask = self.pipeline.encode_prompt(
            prompt=prompts,
            device=self.device,
            max_sequence_length=self.config.max_sequence_length,
        )
        if mask is None:
            mask = torch.ones(embeds.shape[:2], dtype=torch.int64, device=self.device)
        return self._padded(embeds, mask)

    def embed_beside(self, prompts: list[str], shown: Sequence[NDArray[np.uint8]]) -> Condition:
        """Embed prompts; of an editor beside the images [n, H, W, 3] that each comes with.

        Raises:
            UserError: a prompt has the mark of a picture or video in it, which stands for one.
        """
        if not self.reads_sources:
            return self.embed(prompts)
        rows = []
        for prompt, pixels in zip(prompts, shown, strict=True):
            if mark := mark_in(prompt, FAMILIES[self.config.family]):
                raise UserError(f"the prompt {quoted(prompt)} {mark}")
            # The processor has nothing of lengths: one at a time, as the pipelines are called.
            embeds, _ = self.pipeline.encode_prompt(
                prompt=[prompt], image=[*map(self._as_read, pixels)], device=self.device
            )
            words = self.config.max_sequence_length
            embeds = embeds[:, : words + len(pixels) * self._tokens_of_picture]
            mask = torch.ones(embeds.shape[:2], dtype=torch.int64, device=self.device)
            rows.append(self._padded(embeds, mask))
        return {name: torch.cat([row[name] for row in rows]) for name in rows[0]}

    def _padded(self, embeds: Tensor, mask: Tensor) -> Condition:
        missing = self._length - embeds.shape[1]
        return {"prompt_embeds": pad(embeds, (0, 0, 0, missing)), "mask": pad(mask, (0, missing))}

    def _as_read(self, pixels: NDArray[np.uint8]) -> Image.Image:
        """Return a source image [H, W, 3] as the text encoder's processor is given it."""
        height, width = self._size_as_read()
        read: Image.Image = self.pipeline.image_processor.resize(
            Image.fromarray(pixels), height, width
        )
        return read

    def _size_as_read(self) -> tuple[int, int]:
        """Return height and width of a source image as the text encoder's processor gets it.

        That is what the transformer is shown, or of a QwenImageEditPlusPipeline one of its own.
        """
        height, width, _ = self.config.size
        if self._is_plus:
            width, height = calculate_dimensions(CONDITION_IMAGE_SIZE, width / height)
        return height, width

    @property
    def _tokens_of_picture(self) -> int:
        """How many tokens a source image is to the text encoder."""
        processor = getattr(self.pipeline, "processor", None)
        return tokens_of_picture(*self._size_as_read(), processor)

    @property
    def _length(self) -> int:
        """How many tokens the text is padded or cut to, those of source images among them.

        Members of a share deal tokens evenly, and attention's heads: so that who can deal the one
        can deal the other.
        """
        words = self.config.max_sequence_length
        if not self.reads_sources:
            return words
        own = self.config.max_source_images * self._tokens_of_picture
        return words + own + -own % int(self.transformer.config.num_attention_heads)

    def shapes_of_embeddings(self) -> dict[str, tuple[int, ...]]:
        """Return the shapes of a prompt's ``prompt_embeds`` and ``mask``."""
        width = self.transformer.config.joint_attention_dim
        return {"prompt_embeds": (self._length, width), "mask": (self._length,)}

    def image_latents(self, images: Tensor) -> Tensor:
        """Return the packed latents [B, tokens, channels] of images."""
        vae = self.pipeline.vae
        latents = vae.encode(images.unsqueeze(2)).latent_dist.mode()
        scaled = without_latent_statistics(latents, vae.config)[:, :, 0]
        packed: Tensor = QwenImagePipeline._pack_latents(scaled, *scaled.shape)
        return packed

    def sigmas_of_family(self, num_steps: int) -> Tensor:
        """Return sigmas shifted by the image's size and stretched to the terminal sigma."""
        return sigmas_shifted_by_size(self.pipeline.scheduler, num_steps, self.latent_shape[0])

    def predict(self, x: Tensor, sigma: Tensor, condition: Condition) -> Tensor:
        """Return the velocities [B, tokens, channels]."""
        shown, grid = self.with_source(x, condition), (1, self._rows, self._columns)
        velocity: Tensor = self.transformer(
            shown,
            sigma,
            condition["prompt_embeds"].to(self.dtype),
            condition.get("mask"),
            [grid] * (shown.shape[1] // x.shape[1]),
        )
        return velocity[:, : x.shape[1]]

    def guide(self, positive: Tensor, negative: Tensor, scale: float) -> Tensor:
        """Return the guided velocity, each token as long as without guidance."""
        guided = super().guide(positive, negative, scale)
        length, guided_length = (v.norm(dim=-1, keepdim=True) for v in (positive, guided))
        rescaled: Tensor = guided * (length / guided_length)
        return rescaled

    def unpacked(self, x: Tensor) -> Tensor:
        """Return latents [B, z, 1, h, w] at their own scale."""
        latents: Tensor = QwenImagePipeline._unpack_latents(
            x, self.config.height, self.config.width, self.pipeline.vae_scale_factor
        )
        return latents

    def vae_latents(self, x: Tensor) -> Tensor:
        """Return latents [B, z, 1, h, w]."""
        return with_latent_statistics(self.unpacked(x), self.pipeline.vae.config)
