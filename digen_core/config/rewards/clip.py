"""Rewards that are angles between what CLIP makes of texts and images."""

from typing import Literal

from pydantic import Field

from digen_core.config.rewards.base import EditReward, ImageReward, VideoReward
from digen_core.strict import PathText, Strict


class ClipConfig(Strict):
    """A CLIP model of transformers."""

    path: PathText = "openai/clip-vit-large-patch14"
    """Folder or hub id of the model, loaded with from_pretrained."""

    revision: str | None = None
    """Hub revision of `path`; null is the default branch."""

    processor: PathText | None = None
    """Folder or hub id of tokenizer and image processor; null: those of `path`."""

    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    """Precision of the model."""

    batch_size: int = Field(32, ge=1)
    """Images embedded at once."""

    @property
    def processor_path(self) -> str:
        """Where tokenizer and image processor come from."""
        return self.processor or self.path


class ClipScoreConfig(ImageReward, ClipConfig):
    """Agreement of image and prompt, as CLIP sees it."""

    type: Literal["clipscore"] = "clipscore"


class SourceSimilarityConfig(EditReward, ClipConfig):
    """How much an edit keeps of its source image, as CLIP sees it."""

    type: Literal["source_similarity"] = "source_similarity"


class ConsistencyConfig(VideoReward, ClipConfig):
    """How alike the frames of a video are, as CLIP sees them."""

    type: Literal["consistency"] = "consistency"
