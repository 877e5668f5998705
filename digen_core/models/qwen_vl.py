"""The processors of Qwen2.5-VL and Qwen3-VL, and how many tokens a picture is to the former.

transformers' own have a part for videos, which takes torchvision; pictures and texts do without.
"""

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar, Final

from transformers import (
    PreTrainedTokenizerBase,
    Qwen2VLImageProcessorPil,
    Qwen2VLProcessor,
    Qwen3VLProcessor,
)
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize
from transformers.processing_utils import ProcessorMixin

from digen_core.config.model import ModelConfig

PICTURE: Final = "<|image_pad|>"
AROUND: Final = ("<|vision_start|>", "<|vision_end|>")
"""Tokens before and behind those of a picture."""

MAX_RATIO: Final = 200  # of a picture's sides

_VIDEO: Final = "<|video_pad|>"
_SIDE: Final = 28  # pixels in height and width of a token
_PIXELS: Final = {"shortest_edge": 3136, "longest_edge": 12845056}  # as it is published
TINY_PATCH: Final = 8  # pixels in height and width of what a tiny Qwen3-VL sees, of 16
_TINY_PIXELS: Final = {"shortest_edge": 256, "longest_edge": 16777216}


class _WithoutVideos(ProcessorMixin):  # type: ignore[misc]
    """A processor without its part for videos."""

    video_processor_type: ClassVar[str]  # that transformers' own has

    def __init__(
        self, image_processor: Any = None, tokenizer: Any = None, chat_template: Any = None
    ) -> None:
        self.image_token, self.video_token = PICTURE, _VIDEO
        self.image_token_id, self.video_token_id = tokenizer.convert_tokens_to_ids(
            [PICTURE, _VIDEO]
        )
        ProcessorMixin.__init__(self, image_processor, tokenizer, chat_template=chat_template)

    def save_pretrained(self, save_directory: str | Path, *arguments: Any, **settings: Any) -> Any:
        """Save it with what transformers' own wants to have of videos."""
        saved = super().save_pretrained(save_directory, *arguments, **settings)
        video = {"video_processor_type": self.video_processor_type}
        (Path(save_directory) / "video_preprocessor_config.json").write_text(json.dumps(video))
        return saved


class PicturesAndTexts(_WithoutVideos, Qwen2VLProcessor):  # type: ignore[misc]
    """Qwen2.5-VL's."""

    video_processor_type = "Qwen2VLVideoProcessor"


class PicturesAndTexts3(_WithoutVideos, Qwen3VLProcessor):  # type: ignore[misc]
    """Qwen3-VL's."""

    video_processor_type = "Qwen3VLVideoProcessor"


def new_processor(tokenizer: PreTrainedTokenizerBase) -> PicturesAndTexts:
    """Return a processor as Qwen2.5-VL's, around a tokenizer."""
    return PicturesAndTexts(Qwen2VLImageProcessorPil(size=dict(_PIXELS)), tokenizer)


def new_processor_3(tokenizer: PreTrainedTokenizerBase) -> PicturesAndTexts3:
    """Return a processor as Qwen3-VL's, around a tokenizer with a template of chats.

    Its pictures have tokens of 16 x 16 pixels for the published 32 x 32, and may be small.
    """
    images = Qwen2VLImageProcessorPil(size=dict(_TINY_PIXELS), patch_size=TINY_PATCH)
    return PicturesAndTexts3(images, tokenizer, chat_template=tokenizer.chat_template)


def processor_without_videos(
    model: ModelConfig, kind: type[_WithoutVideos] = PicturesAndTexts
) -> _WithoutVideos | None:
    """Return the processor of a model where transformers cannot load its own; else None.

    Args:
        model: whose folder has a processor.
        kind: of it.

    Raises:
        OSError: it is not there.
    """
    if find_spec("torchvision") is not None:
        return None
    found: _WithoutVideos = kind.from_pretrained(
        model.source, subfolder="processor", revision=model.revision
    )
    return found


def tokens_of_picture(height: int, width: int, processor: Any = None) -> int:
    """Return how many tokens a picture is, with those around it.

    Args:
        height: in pixels.
        width: in pixels.
        processor: that makes tokens of it; None: one as it is published.
    """
    limits = _PIXELS if processor is None else processor.image_processor.size
    rows, columns = map(
        int,
        smart_resize(
            height,
            width,
            _SIDE,
            min_pixels=limits["shortest_edge"],
            max_pixels=limits["longest_edge"],
        ),
    )
    return len(AROUND) + rows * columns // _SIDE**2
