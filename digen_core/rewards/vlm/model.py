"""A Qwen2-VL with a head: numbers at marks in a text about an image or a video.

The published programs give the text model embeddings without their grid, so that each token has
the position of its place in the text, in all three axes; so it is here.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from digen_core.config.rewards.head_template import filled, load_head_template
from digen_core.config.rewards.reward_models import HeadConfig
from digen_core.errors import ConfigError
from digen_core.maths.tensors import TORCH_DTYPES
from digen_core.rewards.vlm.frames import patches_of
from digen_core.rewards.vlm.weights import HEAD, fitted


class Sight(NamedTuple):
    """What a model is shown."""

    kind: Literal["image", "video"]
    min_pixels: int
    max_pixels: int
    """Of a frame, whose sides become multiples of 28."""


class HeadedVlm:
    """A Qwen2-VL with a head, its tokenizer and its image processor."""

    def __init__(self, config: HeadConfig, sight: Sight, device: torch.device) -> None:
        """Load all but the weights.

        Raises:
            ConfigError: something cannot be loaded; the message is one line.
        """
        self._template = load_head_template(config.template, config.marks)
        self._base, self._dtype = config.base, TORCH_DTYPES[config.dtype]
        self._sight, self._device, self._batch_size = sight, device, config.batch_size
        self._settings, self._tokenizer, self._processor = _of_the_base(config.base, sight)
        self._tokenizer.add_tokens(list(config.marks), special_tokens=True)
        self._settings.text_config.vocab_size = len(self._tokenizer)
        marks = self._tokenizer.convert_tokens_to_ids(list(config.marks))
        self._marks = torch.tensor(marks, device=device)
        place = getattr(self._settings, f"{sight.kind}_token_id")
        self._place: str = self._tokenizer.convert_ids_to_tokens(place)
        self._check_chat()

    def load(self, weights: Mapping[str, Tensor], head: nn.Module, path: Path) -> None:
        """Take the weights.

        Args:
            weights: by their names in the file.
            head: on the meta device, in float32.
            path: of the file, for errors.

        Raises:
            ConfigError: they are not those of the model.
        """
        from transformers import Qwen2VLModel

        with torch.device("meta"):
            empty = Qwen2VLModel(self._settings)
        parts = {"": empty, HEAD: head}
        shapes = {
            start + name: own.shape
            for start, part in parts.items()
            for name, own in part.state_dict().items()
        }
        found = fitted(weights, shapes, path)
        body = {name: own for name, own in found.items() if not name.startswith(HEAD)}
        own = {n.removeprefix(HEAD): v.float() for n, v in found.items() if n.startswith(HEAD)}
        head.load_state_dict(own, assign=True)
        model: Any = Qwen2VLModel.from_pretrained(
            None, config=self._settings, state_dict=body, dtype=self._dtype
        )
        self._model: Any = model.to(self._device).eval().requires_grad_(False)
        self._head = head.to(self._device).eval().requires_grad_(False)

    @property
    def width(self) -> int:
        """Numbers in a hidden state."""
        return int(self._settings.text_config.hidden_size)

    @torch.no_grad()
    def __call__(self, samples: Sequence[NDArray[np.uint8]], prompts: Sequence[str]) -> Tensor:
        """Return what the head says at each mark, float32 [B, marks, outputs].

        Args:
            samples: B images [1, H, W, 3], or videos [F, H, W, 3] with F even.
            prompts: B texts.

        Raises:
            ConfigError: a prompt has a mark.
        """
        size = self._batch_size
        return torch.cat(
            [
                self._score(samples[start : start + size], prompts[start : start + size])
                for start in range(0, len(samples), size)
            ]
        )

    def _score(self, samples: Sequence[NDArray[np.uint8]], prompts: Sequence[str]) -> Tensor:
        seen = [patches_of(frames, self._processor) for frames in samples]
        texts = [self._text(prompt, grid) for prompt, (_, grid) in zip(prompts, seen, strict=True)]
        tokens = self._tokenizer(texts, padding=True, padding_side="right", return_tensors="pt").to(
            self._device
        )
        ids = tokens["input_ids"]
        end = "" if self._sight.kind == "image" else "_videos"
        hidden = self._model(
            input_ids=ids,
            attention_mask=tokens["attention_mask"],
            position_ids=torch.arange(ids.shape[1], device=ids.device).expand(3, *ids.shape),
            use_cache=False,
            **{
                f"pixel_values{end}": torch.cat([values for values, _ in seen]).to(self._device),
                f"{self._sight.kind}_grid_thw": torch.stack([grid for _, grid in seen]).to(
                    self._device
                ),
            },
        ).last_hidden_state
        read = hidden[torch.isin(ids, self._marks)].view(len(ids), len(self._marks), -1)
        scores: Tensor = self._head(read.float())
        return scores

    def _text(self, prompt: str, grid: Tensor) -> str:
        """Return the whole text about a sample, with a place for each of its tokens."""
        count = int(grid.prod()) // self._processor.merge_size**2
        chat = self._chat(filled(self._template, prompt))
        return chat.replace(self._place, self._place * count)

    def _check_chat(self) -> None:
        try:
            count = self._chat("").count(self._place)
        except Exception as error:  # there is no template, or it raises whatever it does
            reason = " ".join(str(error).split())[:200]
            raise ConfigError(f"the base {self._base} makes no chat: {reason}") from error
        if count != 1:
            raise ConfigError(
                f"the chat template of {self._base} leaves {count} places for one "
                f"{self._sight.kind}; give the folder or hub id of a Qwen2-VL for instructions"
            )

    def _chat(self, text: str) -> str:
        content = [{"type": self._sight.kind}, {"type": "text", "text": text}]
        chat: str = self._tokenizer.apply_chat_template(
            [{"role": "user", "content": content}],
            tokenize=False,
            add_generation_prompt=True,
        )
        return chat


def _of_the_base(base: str, sight: Sight) -> tuple[Any, Any, Any]:
    """Return settings, tokenizer and image processor of the model that it began as."""
    from transformers import AutoConfig, AutoTokenizer, Qwen2VLConfig, Qwen2VLImageProcessorPil

    size = {"min_pixels": sight.min_pixels, "max_pixels": sight.max_pixels}
    try:
        settings = AutoConfig.from_pretrained(base)
        tokenizer = AutoTokenizer.from_pretrained(base)
        processor = Qwen2VLImageProcessorPil.from_pretrained(base, **size)
    except Exception as error:  # whatever a damaged file raises
        reason = " ".join(str(error).split())[:300]
        raise ConfigError(f"the base {base} cannot be loaded: {reason}") from error
    if not isinstance(settings, Qwen2VLConfig):
        raise ConfigError(f"the base {base} is a {settings.model_type}, not a Qwen2-VL; correct it")
    return settings, tokenizer, processor
