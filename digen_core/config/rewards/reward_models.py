"""Rewards that are vision-language models with a head that gives numbers in place of words."""

from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, Field

from digen_core.config.rewards.base import ImageReward, VideoReward
from digen_core.strict import PathText, Strict

Dimension = Literal["vq", "mq", "ta"]


def _each_once(dimensions: tuple[Dimension, ...]) -> tuple[Dimension, ...]:
    if not dimensions or len(set(dimensions)) < len(dimensions):
        raise ValueError("must name one dimension or more, each once")
    return dimensions


class HeadConfig(Strict):
    """A Qwen2-VL with a head, which reads numbers at marks in the text."""

    marks: ClassVar[tuple[str, ...]]
    """Tokens at which the head reads, in the order in which they stand in the text."""

    path: PathText
    """Folder or hub id of the published weights."""

    revision: str | None = None
    """Hub revision of `path`; null is the default branch."""

    base: PathText
    """Folder or hub id of the Qwen2-VL that it began as: settings, tokenizer and image processor.
    Its weights are not read."""

    template: PathText
    """Text file of the published instruction, with {text_prompt} once, and each mark once. See
    docs/rewards.md."""

    dtype: Literal["float32", "bfloat16", "float16"] = "bfloat16"
    """Precision of the model; its head computes in float32."""

    batch_size: int = Field(ge=1)
    """Samples scored at once."""


class Hps3Config(ImageReward, HeadConfig):
    """What people prefer, as HPS v3 predicts it."""

    marks: ClassVar[tuple[str, ...]] = ("<|Reward|>",)

    type: Literal["hps3"] = "hps3"

    path: PathText = "MizzenAI/HPSv3"
    """Folder or hub id of the published file, HPSv3.safetensors."""

    base: PathText = "Qwen/Qwen2-VL-7B-Instruct"
    """Folder or hub id of the Qwen2-VL that it began as: settings, tokenizer and image processor.
    Its weights are not read."""

    batch_size: int = Field(8, ge=1)
    """Images scored at once."""


class VideoRewardConfig(VideoReward, HeadConfig):
    """How good a video is and how well it suits its prompt, as VideoAlign's VideoReward says."""

    marks: ClassVar[tuple[str, ...]] = ("<|VQ_reward|>", "<|MQ_reward|>", "<|TA_reward|>")

    type: Literal["video_reward"] = "video_reward"

    path: PathText = "KwaiVGI/VideoReward"
    """Folder or hub id of the published files: model_config.json and checkpoint-NUMBER/model.pth,
    of which that of the highest number is read."""

    base: PathText = "Qwen/Qwen2-VL-2B-Instruct"
    """Folder or hub id of the Qwen2-VL that it began as: settings, tokenizer and image processor.
    Its weights are not read."""

    frames_per_second: float = Field(gt=0, le=1000)
    """At which the model's videos are meant to be played: 16 of Wan 2.1, 24 of HunyuanVideo."""

    dimensions: Annotated[tuple[Dimension, ...], AfterValidator(_each_once)] = ("vq", "mq", "ta")
    """What is summed: visual quality, motion quality, agreement with the text. All are columns."""

    batch_size: int = Field(2, ge=1)
    """Videos scored at once."""
