"""Rewards that are figures of an image's or a video's pixels."""

from typing import Literal

from pydantic import Field

from digen_core.config.rewards.base import ImageReward, VideoReward


class JpegCompressibilityConfig(ImageReward):
    """Minus the kB of the image as a JPEG."""

    type: Literal["jpeg_compressibility"] = "jpeg_compressibility"


class JpegIncompressibilityConfig(ImageReward):
    """The kB of the image as a JPEG."""

    type: Literal["jpeg_incompressibility"] = "jpeg_incompressibility"


class MotionConfig(VideoReward):
    """How much moves in a video, as far as it moves and does not flicker."""

    type: Literal["motion"] = "motion"

    enough: float = Field(0.01, gt=0, le=1)
    """Motion that scores fully, per frame, as a fraction of the frame's shorter side."""


class TemporalFlickeringConfig(VideoReward):
    """How little the pixels of neighbouring frames differ: VBench's temporal flickering."""

    type: Literal["temporal_flickering"] = "temporal_flickering"
