"""Rewards that are verifiers: they tell whether an image shows what its prompt asks for."""

from typing import Literal

from pydantic import Field

from digen_core.config.rewards.base import EditReward, ImageReward
from digen_core.config.rewards.clip import ClipConfig
from digen_core.strict import PathText


class ShapesConfig(ImageReward):
    """The verifier of the world `shapes`."""

    type: Literal["shapes"] = "shapes"


class ShapesEditConfig(EditReward):
    """The verifier of edits in the world `shapes`."""

    type: Literal["shapes_edit"] = "shapes_edit"


class OcrConfig(ImageReward):
    """How much of the prompt's quoted text can be read in the image."""

    type: Literal["ocr"] = "ocr"

    text_column: str | None = None
    """Metadata column of the text to be read; null: what the prompt quotes. See docs/prompts.md."""

    min_confidence: float = Field(0.5, ge=0, le=1)
    """Lines that the engine is less sure of are taken as unread."""


class BlipReward(ImageReward):
    """A BLIP that answers questions about images."""

    path: PathText = "Salesforce/blip-vqa-base"
    """Folder or hub id of the model and its processor, loaded with from_pretrained."""

    revision: str | None = None
    """Hub revision of `path`; null is the default branch."""

    image_size: int | None = Field(None, ge=16, le=4096)
    """Pixels of each side that images are scaled to; null: what the processor says. Positions are
    interpolated if the model has others."""

    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    """Precision of the model."""

    batch_size: int = Field(32, ge=1)
    """Images seen, and questions asked, at once."""


class BlipVqaConfig(BlipReward):
    """Whether the image shows each noun phrase of its prompt, as a BLIP says that is asked.

    The score of T2I-CompBench's attributes.
    """

    type: Literal["blip_vqa"] = "blip_vqa"


class DpgBlipConfig(BlipReward):
    """The questions that come with a prompt, as DPG-Bench has them, answered by a BLIP."""

    type: Literal["dpg_blip"] = "dpg_blip"


class GenevalConfig(ImageReward, ClipConfig):
    """The objects that a prompt names, their number, colours and places: GenEval's detector."""

    type: Literal["geneval"] = "geneval"

    path: PathText = "openai/clip-vit-large-patch14"
    """Folder or hub id of the CLIP model that tells colours, loaded with from_pretrained."""

    detector: PathText = "facebook/mask2former-swin-small-coco-instance"
    """Folder or hub id of a detector of COCO's classes: Mask2Former or MaskFormer, whose masks are
    used, or a model for object detection."""

    detector_revision: str | None = None
    """Hub revision of `detector`; null is the default branch."""

    detector_batch_size: int = Field(8, ge=1)
    """Images looked at by the detector at once."""

    counts: Literal["partial", "correct", "strict"] = "partial"
    """What the score is. partial: FlowGRPO's, for what is nearly right; correct: GenEval's, 0 or 1;
    strict: 1 if there are exactly as many objects as wanted."""

    threshold: float = Field(0.3, ge=0, le=1)
    """Objects that the detector is not surer of are not there."""

    counting_threshold: float = Field(0.9, ge=0, le=1)
    """The same for prompts of the task counting."""

    max_objects: int = Field(16, ge=1)
    """Most objects of a class, the surest ones."""

    max_overlap: float = Field(1.0, gt=0, le=1)
    """Intersection over union from which two boxes of a class are one object; 1: never."""

    position_slack: float = Field(0.1, ge=0)
    """Distance between centres that is no direction yet, as a share of the boxes' extents."""
