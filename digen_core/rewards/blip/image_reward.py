"""ImageReward: what people prefer, by a BLIP model that reads the prompt while it sees the image.

Xu et al. 2023 (https://arxiv.org/abs/2304.05977), its published file and constants: the prompt, of
at most 35 tokens, attends to the image in each layer, a head maps its first token to a number,
which is normalised so that scores of the data set have mean 0 and standard deviation 1.
"""

from collections.abc import Sequence
from typing import Any, Final

import torch
from torch import Tensor

from digen_core.config.rewards.preferences import ImageRewardConfig
from digen_core.errors import ConfigError
from digen_core.maths.tensors import TORCH_DTYPES
from digen_core.rewards.blip.checkpoint import TEXT_CONFIG, WEIGHTS, load_checkpoint
from digen_core.rewards.checkpoints import published_folder
from digen_core.rewards.pixels import as_pixels

MAX_TOKENS: Final = 35
_MEAN: Final = 0.16717362830052426
_STANDARD_DEVIATION: Final = 1.0333394966054072


class ImageReward:
    """Scores images by what people prefer for a prompt."""

    def __init__(self, config: ImageRewardConfig, device: torch.device) -> None:
        """Load models and tokenizer.

        Raises:
            ConfigError: one of them cannot be loaded.
        """
        self._device, self._batch_size = device, config.batch_size
        files = [WEIGHTS, TEXT_CONFIG]
        folder = published_folder(config.path, config.revision, files, "ImageReward")
        vision, text, head = load_checkpoint(folder, TORCH_DTYPES[config.dtype])
        self._vision, self._text, self._head = (
            module.to(device).eval().requires_grad_(False) for module in (vision, text, head)
        )
        self._processor = _processor(vision.config.image_size)
        self._tokenizer = _tokenizer(config.tokenizer)

    @torch.no_grad()
    def __call__(self, images: Tensor, prompts: Sequence[str]) -> Tensor:
        """Score images [B, 3, H, W]: float32 [B]."""
        pixels, size = as_pixels(images), self._batch_size
        return torch.cat(
            [
                self._score(list(pixels[start : start + size]), prompts[start : start + size])
                for start in range(0, len(pixels), size)
            ]
        )

    def _score(self, pixels: list[Any], prompts: Sequence[str]) -> Tensor:
        inputs = self._processor(
            images=pixels, return_tensors="pt", input_data_format="channels_last"
        )
        values = inputs["pixel_values"].to(self._device, self._vision.dtype)
        tokens = self._tokenizer(
            list(prompts),
            padding=True,
            truncation=True,
            max_length=MAX_TOKENS,
            return_tensors="pt",
        ).to(self._device)
        seen = self._vision(values).last_hidden_state
        read = self._text(
            tokens["input_ids"],
            attention_mask=tokens["attention_mask"],
            encoder_hidden_states=seen,
        ).last_hidden_state
        scores: Tensor = self._head(read[:, 0].float()).squeeze(-1)
        return (scores - _MEAN) / _STANDARD_DEVIATION


def _processor(size: int) -> Any:
    """Return what scales and cuts images to a square, as CLIP's processor does."""
    from transformers import CLIPImageProcessor

    return CLIPImageProcessor(size={"shortest_edge": size}, crop_size=size)


def _tokenizer(path: str) -> Any:
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(path)
    except Exception as error:  # whatever a damaged file raises
        reason = " ".join(str(error).split())[:300]
        raise ConfigError(f"the tokenizer {path} cannot be loaded: {reason}") from error
