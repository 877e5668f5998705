"""CLIP models of transformers: what several rewards see images and prompts with."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from digen_core.config.rewards.clip import ClipConfig
from digen_core.errors import ConfigError
from digen_core.maths.tensors import TORCH_DTYPES
from digen_core.rewards.pixels import as_pixels, centre, shrunk, standardized


class Clip:
    """A CLIP model with its tokenizer and image processor; embeddings have length 1."""

    def __init__(self, config: ClipConfig, device: torch.device) -> None:
        """Load model and processor.

        Raises:
            ConfigError: one of them cannot be loaded.
        """
        from transformers import CLIPModel, CLIPProcessor

        self._device, self._batch_size = device, config.batch_size
        try:
            model = CLIPModel.from_pretrained(
                config.path, revision=config.revision, dtype=TORCH_DTYPES[config.dtype]
            )
            self._processor: Any = CLIPProcessor.from_pretrained(
                config.processor_path,
                revision=config.revision if config.processor_path == config.path else None,
            )
        except (OSError, ValueError) as error:
            reason = " ".join(str(error).split())[:300]
            raise ConfigError(
                f"the CLIP model {config.path} with the processor {config.processor_path} cannot "
                f"be loaded: {reason}"
            ) from error
        self._model: Any = model.to(device).eval().requires_grad_(False)
        self._antialias = config.antialias
        if not config.antialias and not self._processor.image_processor.size.get("shortest_edge"):
            raise ConfigError(
                f"the image processor {config.processor_path} scales images to "
                f"{dict(self._processor.image_processor.size)} and not to a shortest_edge; use "
                "another, or antialias = true"
            )

    @property
    def scale(self) -> float:
        """What the model multiplies similarities by."""
        return float(self._model.logit_scale.exp())

    @property
    def width(self) -> int:
        """Numbers in an embedding."""
        return int(self._model.config.projection_dim)

    def similarities(self, images: Tensor, prompts: Sequence[str]) -> Tensor:
        """Return the cosine [B] between each image [B, 3, H, W] and its prompt, in float32."""
        texts = list(dict.fromkeys(prompts))  # a group has one prompt: it is embedded once
        rows = torch.tensor([texts.index(prompt) for prompt in prompts], device=self._device)
        return (self.embed_images(images) * self.embed_texts(texts)[rows]).sum(dim=-1)

    def embed_images(self, images: Tensor) -> Tensor:
        """Return the embeddings [B, D] of images [B, 3, H, W] in [0, 1], in float32."""
        return self.embed_pixels(list(as_pixels(images)))

    @torch.no_grad()
    def embed_pixels(self, pixels: Sequence[NDArray[np.uint8]]) -> Tensor:
        """Return the embeddings [B, D] of B images [H, W, 3] of any sizes, in float32."""
        parts = []
        for start in range(0, len(pixels), self._batch_size):
            batch = list(pixels[start : start + self._batch_size])
            values = self._prepared(batch).to(self._device)
            parts.append(self._model.get_image_features(values).pooler_output)
        return _unit(torch.cat(parts))

    def _prepared(self, pixels: list[NDArray[np.uint8]]) -> Tensor:
        """Return n images [H, W, 3] of any sizes as the model wants them, [n, 3, h, w]."""
        own = self._processor.image_processor
        if self._antialias:
            found = own(images=pixels, return_tensors="pt", input_data_format="channels_last")
            values: Tensor = found["pixel_values"]
            return values
        side, crop = own.size["shortest_edge"], (own.crop_size["height"], own.crop_size["width"])
        images = [torch.from_numpy(each).movedim(-1, 0)[None] for each in pixels]
        scaled = torch.cat([centre(shrunk(each, side, "bicubic"), *crop) for each in images])
        return standardized(scaled, own.image_mean, own.image_std)

    @torch.no_grad()
    def embed_texts(self, texts: list[str]) -> Tensor:
        """Return the embeddings [B, D] of texts, in float32; what is too long is cut."""
        inputs = self._processor.tokenizer(
            texts,
            padding=True,
            truncation=True,
            max_length=self._model.config.text_config.max_position_embeddings,
            return_tensors="pt",
        ).to(self._device)
        return _unit(self._model.get_text_features(**inputs).pooler_output)


def _unit(embeddings: Tensor) -> Tensor:
    return torch.nn.functional.normalize(embeddings.float(), dim=-1)
