"""The first half of a policy's work: conditions of prompts and of their source images.

Axes: B samples, C channels, H height, W width.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from digen_core.config.families import FAMILIES
from digen_core.config.model import ModelConfig
from digen_core.data.images import SourceImage
from digen_core.gang.members import ALONE
from digen_core.maths.tensors import TORCH_DTYPES
from digen_core.models.offload import off_device, on_device
from digen_core.models.pipeline.conditions import NEGATIVE, SOURCE, joined_rows, without_padding
from digen_core.models.pipeline.family import part_of
from digen_core.models.policy import Condition


class PromptEncoder(ABC):
    """A pipeline that embeds prompts, and encodes the images that they come with."""

    tokenizer_name: ClassVar[str] = "tokenizer"  # of the encoder that max_sequence_length is for
    reads_sources: bool = False  # whether its text encoder is shown source images, too
    uses_cfg: ClassVar[bool] = False  # else its guidance is embedded, or it has none
    guides_above: ClassVar[float] = 1.0  # the scale up to which there is no such guidance
    latent_shape: tuple[int, ...]  # of a sample
    latent_dtype: torch.dtype

    def __init__(self, pipeline: Any, config: ModelConfig, device: torch.device) -> None:
        self.pipeline = pipeline
        self.config = config
        self.device = device
        # The module's own ``dtype`` walks all its submodules: milliseconds at each step.
        self.dtype = TORCH_DTYPES[config.dtype]
        self.gang = ALONE
        configs = config, config.in_training, config.as_reference
        scales = [scale for own in configs for scale in own.guidance_scales]
        self.guided = self.uses_cfg and max(scales) > self.guides_above  # in any of its roles
        self._negative: Condition | None = None
        self._aside: list[Any] = []  # transformers, of all views of it

    @property
    @abstractmethod
    def transformers(self) -> list[Any]:
        """The transformers of diffusers, which may make room for text encoders."""

    @torch.no_grad()
    def encode(
        self,
        prompts: list[str],
        images: Sequence[Sequence[SourceImage]] = (),
        negatives: Sequence[str | None] = (),
    ) -> Condition:
        """Embed prompts, a row each; with guidance, also what to steer away from.

        Every value has the same shape for all prompts, so that packs can join them.

        Args:
            prompts: texts.
            images: that each comes with, equally many, if the model is shown source images.
            negatives: what guidance steers away from; None, or none at all: the config's.

        Raises:
            UserError: an image is gone, changed or damaged.
        """
        height, width, _ = self.config.size
        shown = [np.stack([own.pixels(height, width) for own in of_one]) for of_one in images]
        with self.encoding():
            condition = self.embed_beside(prompts, shown)
            if self.guided:
                own = self._embed_negatives(negatives or [None] * len(prompts), shown)
                condition |= {NEGATIVE + name: value for name, value in own.items()}
            if self.config.source_image:
                condition |= self.embed_sources(shown)
        if self.config.source_image:
            condition[SOURCE] = self._encode_images(shown)
        return condition

    def _embed_negatives(
        self, negatives: Sequence[str | None], shown: Sequence[NDArray[np.uint8]]
    ) -> Condition:
        """Embed negative prompts, a row each; the same text once, unless images come with it."""
        if self.reads_sources:
            texts = [self.config.negative_prompt if own is None else own for own in negatives]
            return self.embed_beside(texts, shown)
        different = {text: self._embed_negative(text) for text in dict.fromkeys(negatives)}
        rows = [different[text] for text in negatives]
        return joined_rows(rows)

    def _embed_negative(self, text: str | None) -> Condition:
        """Embed one negative prompt; that of the config, which most have, once."""
        if text is not None and text != self.config.negative_prompt:
            return self.embed_negative([text])
        if self._negative is None:
            self._negative = self.embed_negative([self.config.negative_prompt])
        return self._negative

    def _encode_images(self, shown: Sequence[NDArray[np.uint8]]) -> Tensor:
        """Return what the transformer is shown of source images, [B, tokens, ...] in ``dtype``."""
        pixels = self._for_vae(torch.from_numpy(np.stack(shown)).movedim(-1, 2))
        with on_device([self.pipeline.vae], self.device):
            return self.latents_of_sources(pixels)

    @torch.no_grad()
    def encode_samples(self, images: Sequence[SourceImage]) -> Tensor:
        """Return clean latents [B, ...] in ``latent_dtype`` of images, cut to the samples' size.

        ``decode`` makes of them what the VAE can keep of the images. Each is encoded by itself, so
        that its numbers do not depend on those beside it.

        Args:
            images: B of them.

        Raises:
            UserError: an image is gone, changed or damaged.
        """
        height, width, _ = self.config.size
        with on_device([self.pipeline.vae], self.device):
            latents = [
                self.image_latents(
                    self._for_vae(
                        torch.from_numpy(own.pixels(height, width).copy()).movedim(-1, 0)[None]
                    )
                )
                for own in images
            ]
        return torch.cat(latents).to(self.latent_dtype)

    def _for_vae(self, pixels: Tensor) -> Tensor:
        """Return pixels [..., 3, H, W] of 8 bits as the VAE takes them: in [-1, 1]."""
        dtype = self.pipeline.vae.dtype
        exact = torch.promote_types(dtype, torch.float32)  # of 1 and -1 half precision has few
        return (pixels.to(self.device, exact) / 127.5 - 1).to(dtype)

    @contextmanager
    def encoding(self) -> Iterator[None]:
        """Have the text encoders on the device while the body runs: once for many prompts.

        The transformer makes room for them if the config says so.
        """
        modules = [
            module
            for name, module in self.pipeline.components.items()
            if isinstance(module, nn.Module) and part_of(name) == "text_encoders"
        ]
        with ExitStack() as stack:
            if "transformer" in self.config.offload and not self._aside:
                self._aside.extend(self.transformers)
                stack.callback(self._aside.clear)
                stack.enter_context(off_device(self.transformers, self.device))
            stack.enter_context(on_device(modules, self.device))
            yield

    def without_padding(self, condition: Condition) -> Condition:
        """Leave out what no row of a condition attends to.

        As much padding stays as lets the members of a share deal the text's tokens evenly.
        """
        deals_any = FAMILIES[self.config.family].deals_any_number
        return without_padding(condition, 1 if deals_any else self.gang.context_parallel)

    def num_tokens(self, prompts: list[str], num_images: Sequence[int] = ()) -> list[int]:
        """Return how many tokens each prompt takes; more than ``max_sequence_length`` are cut off.

        0 where the pipeline comes without that encoder.

        Args:
            prompts: texts.
            num_images: that each comes with, which few text encoders are told; none: no image.
        """
        tokenizer = getattr(self.pipeline, self.tokenizer_name)
        if tokenizer is None:
            return [0] * len(prompts)
        texts, before = self.wrapped(prompts)
        return [len(tokens) - before for tokens in tokenizer(texts).input_ids]

    def blank_condition(self, count: int) -> Condition:
        """Return what ``encode`` returns for prompts without padding, but for the embeddings."""
        condition = {}
        for name, shape in self.shapes_of_embeddings().items():
            is_mask = name.endswith("mask")
            make, dtype = (torch.ones, torch.int64) if is_mask else (torch.empty, self.dtype)
            condition[name] = make(count, *shape, dtype=dtype, device=self.device)
        if self.guided:
            condition |= {NEGATIVE + name: value for name, value in condition.items()}
        if self.config.source_image:
            for name, shape in self.shapes_of_sources().items():
                condition[name] = torch.empty(count, *shape, dtype=self.dtype, device=self.device)
        return condition

    def with_source(self, x: Tensor, condition: Condition) -> Tensor:
        """Return latents [B, tokens, ...] in ``dtype``, behind them those of all source images.

        Without such images there are no more than in ``x``.
        """
        shown = x.to(self.dtype)
        if SOURCE in condition:
            shown = torch.cat([shown, condition[SOURCE].to(self.dtype)], dim=1)
        return shown

    @abstractmethod
    def embed(self, prompts: list[str]) -> Condition:
        """Embed prompts, of any number, in shapes that do not depend on their words."""

    def embed_negative(self, prompts: list[str]) -> Condition:
        """Embed what guidance steers away from, as prompts are if the family says nothing else."""
        return self.embed(prompts)

    def embed_beside(self, prompts: list[str], shown: Sequence[NDArray[np.uint8]]) -> Condition:
        """Embed prompts beside the images [n, H, W, 3] that each comes with, if they do."""
        return self.embed(prompts)

    def wrapped(self, prompts: list[str]) -> tuple[list[str], int]:
        """Return what the family makes of prompts, and how many tokens before them do not count."""
        return prompts, 0

    def latents_of_sources(self, images: Tensor) -> Tensor:
        """Return what the transformer is shown of images [B, n, 3, H, W] in [-1, 1], in ``dtype``.

        That is [B, tokens, ...], those of one image behind those of the other, if the family says
        nothing else.
        """
        # one image of each at a time: a VAE may take as much memory for it as samples take
        latents = [self.source_latents(own).to(self.dtype) for own in images.unbind(1)]
        return torch.cat(latents, dim=1)

    def source_latents(self, images: Tensor) -> Tensor:
        """Return what the transformer is shown of images [B, 3, H, W] in [-1, 1].

        They are latents as those of samples, [B, ...], if the family says nothing else.
        """
        return self.image_latents(images)

    def image_latents(self, images: Tensor) -> Tensor:
        """Return the clean latents [B, ...] of images [B, 3, H, W] in [-1, 1], as samples have.

        They are the mode of what the VAE makes of them; ``vae_latents`` leads back to it.

        Raises:
            TypeError: the family makes videos.
        """
        raise TypeError(f"{type(self).__name__} makes no latents of images")

    def embed_sources(self, shown: Sequence[NDArray[np.uint8]]) -> Condition:
        """Return what an encoder of images makes of those [n, H, W, 3] of each prompt, if any."""
        return {}

    def shapes_of_sources(self) -> dict[str, tuple[int, ...]]:
        """Return the shapes of what the transformer is shown of a prompt's source images."""
        tokens, *channels = self.latent_shape
        return {SOURCE: (self.config.max_source_images * tokens, *channels)}

    @abstractmethod
    def shapes_of_embeddings(self) -> dict[str, tuple[int, ...]]:
        """Return the shape that each value of ``embed`` has for one prompt."""
