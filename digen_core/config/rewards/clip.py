"""Rewards that are angles between what CLIP, or DINO, makes of texts and images."""

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

    antialias: bool = True
    """Whether images are made smaller as the image processor does, which smooths them first; false:
    by torch without, as VBench does, to the processor's size and with its mean and deviation."""

    @property
    def processor_path(self) -> str:
        """Where tokenizer and image processor come from."""
        return self.processor or self.path


class ClipScoreConfig(ImageReward, ClipConfig):
    """Agreement of image and prompt, as CLIP sees it."""

    type: Literal["clipscore"] = "clipscore"

    counts: Literal["clipscore", "cosine"] = "clipscore"
    """What the score is. clipscore: 2.5 times the cosine, at least 0; cosine: as it is."""

    text_column: str | None = None
    """Metadata column of the text that images are compared with, in place of the prompt; dots lead
    into objects. A row where it is null is compared with its prompt."""


class SourceSimilarityConfig(EditReward, ClipConfig):
    """How much an edit keeps of its source image, as CLIP sees it."""

    type: Literal["source_similarity"] = "source_similarity"


class ConsistencyConfig(VideoReward, ClipConfig):
    """How alike the frames of a video are, as CLIP sees them."""

    type: Literal["consistency"] = "consistency"


class SubjectConsistencyConfig(VideoReward):
    """How alike the frames of a video are, as DINO sees them: VBench's subject consistency."""

    type: Literal["subject_consistency"] = "subject_consistency"

    path: PathText = "facebook/dino-vitb16"
    """Folder or hub id of the ViT, loaded with from_pretrained."""

    revision: str | None = None
    """Hub revision of `path`; null is the default branch."""

    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    """Precision of the model."""

    batch_size: int = Field(32, ge=1)
    """Frames seen at once."""
