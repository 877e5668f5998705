"""Rewards that are trained to tell what people prefer."""

from typing import Final, Literal

from pydantic import Field

from digen_core.config.rewards.base import ImageReward
from digen_core.config.rewards.clip import ClipConfig
from digen_core.strict import PathText

PICKSCORE: Final = "yuvalkirstain/PickScore_v1"


class PickScoreConfig(ImageReward, ClipConfig):
    """What people would pick, as PickScore predicts it."""

    type: Literal["pickscore"] = "pickscore"

    path: PathText = PICKSCORE
    """Folder or hub id of the model, loaded with from_pretrained."""

    @property
    def processor_path(self) -> str:
        """The published model comes without a processor: it is that of the CLIP it began as."""
        if self.processor is None and self.path == PICKSCORE:
            return "laion/CLIP-ViT-H-14-laion2B-s32B-b79K"
        return super().processor_path


class HpsConfig(ImageReward, ClipConfig):
    """What people prefer, as HPS v2 predicts it."""

    type: Literal["hps"] = "hps"

    path: PathText
    """Folder or hub id of HPS v2's weights in the format of transformers."""


class ImageRewardConfig(ImageReward):
    """What people prefer, as ImageReward predicts it."""

    type: Literal["image_reward"] = "image_reward"

    path: PathText = "zai-org/ImageReward"
    """Folder or hub id of the published files: ImageReward.pt and med_config.json."""

    revision: str | None = None
    """Hub revision of `path`; null is the default branch."""

    tokenizer: PathText = "google-bert/bert-base-uncased"
    """Folder or hub id of the tokenizer, which is BERT's."""

    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    """Precision of the model; its head computes in float32."""

    batch_size: int = Field(32, ge=1)
    """Images scored at once."""


class AestheticConfig(ImageReward, ClipConfig):
    """How much people like the image, whatever the prompt: LAION's predictor."""

    type: Literal["aesthetic"] = "aesthetic"

    head: PathText
    """Safetensors file of the predictor's linear layers."""
