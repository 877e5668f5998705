"""Qwen2.5-VL's processor, and how many tokens a picture is to it.

transformers' own has a part for videos, which takes torchvision; pictures and texts do without.
"""

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from transformers import PreTrainedTokenizerBase, Qwen2VLImageProcessorPil, Qwen2VLProcessor
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


class PicturesAndTexts(Qwen2VLProcessor):  # type: ignore[misc]
    """The processor without its part for videos."""

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
        video = {"video_processor_type": "Qwen2VLVideoProcessor"}
        (Path(save_directory) / "video_preprocessor_config.json").write_text(json.dumps(video))
        return saved


def new_processor(tokenizer: PreTrainedTokenizerBase) -> PicturesAndTexts:
    """Return a processor as Qwen2.5-VL's, around a tokenizer."""
    return PicturesAndTexts(Qwen2VLImageProcessorPil(size=dict(_PIXELS)), tokenizer)


def processor_without_videos(model: ModelConfig) -> PicturesAndTexts | None:
    """Return the processor of a model where transformers cannot load its own; else None.

    Raises:
        OSError: it is not there.
    """
    if find_spec("torchvision") is not None:
        return None
    found: PicturesAndTexts = PicturesAndTexts.from_pretrained(
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
