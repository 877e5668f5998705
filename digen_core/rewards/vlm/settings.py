"""What VideoReward's ``model_config.json`` says: frames, adapters, means and deviations."""

from pathlib import Path
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from digen_core.config.load import describe_fields
from digen_core.errors import ConfigError, UserError
from digen_core.inputs.reading import read_json_object

SETTINGS: Final = "model_config.json"


class _Part(BaseModel):
    """A part of the file; what else it says is of the training."""

    model_config = ConfigDict(frozen=True, allow_inf_nan=False)


class Frames(_Part):
    """Which frames are seen, and how large."""

    fps: float = Field(gt=0)
    max_frame_pixels: int = Field(ge=28 * 28)
    num_frames: None = None
    sample_type: Literal["uniform"]
    prompt_template_type: Literal["detailed_special"]


class Head(_Part):
    """One number at each mark."""

    use_special_tokens: Literal[True]
    output_dim: Literal[1]
    reward_token: Literal["special"]


class Adapters(_Part):
    """Of rank r; B A is multiplied by alpha / r, or alpha / sqrt(r)."""

    lora_r: int = Field(16, ge=1)
    lora_alpha: float = 32
    use_rslora: bool = False

    def scale(self, rank: int) -> float:
        """Return what B A is multiplied by.

        Raises:
            RuntimeError: the adapters have another rank than the file says.
        """
        if rank != self.lora_r:
            raise RuntimeError(f"its rank is {rank}, but {SETTINGS} says {self.lora_r}")
        return self.lora_alpha / (rank**0.5 if self.use_rslora else rank)


class Norms(_Part):
    """Mean and standard deviation of each dimension's numbers."""

    vq_mean: float = Field(alias="VQ_mean")
    vq_std: float = Field(alias="VQ_std", gt=0)
    mq_mean: float = Field(alias="MQ_mean")
    mq_std: float = Field(alias="MQ_std", gt=0)
    ta_mean: float = Field(alias="TA_mean")
    ta_std: float = Field(alias="TA_std", gt=0)


class Settings(_Part):
    """All that scoring needs."""

    frames: Frames = Field(alias="data_config")
    head: Head = Field(alias="model_config")
    adapters: Adapters = Field(alias="peft_lora_config")
    norms: Norms = Field(alias="inference_config")


def read_settings(folder: Path) -> Settings:
    """Read them from the folder of the published files.

    Raises:
        ConfigError: they cannot be read, or are of a model of another kind.
    """
    path = folder / SETTINGS
    try:
        return Settings.model_validate(read_json_object(path, "VideoReward's settings"))
    except ValidationError as error:
        said = describe_fields(error, Settings)
        raise ConfigError(f"{path} is not that of the published VideoReward: {said}") from error
    except UserError as error:
        raise ConfigError(str(error)) from error


def checkpoint_in(folder: Path) -> Path:
    """Return the path of the weights in the folder of the published files: the latest.

    Raises:
        ConfigError: there are none.
    """
    found = {
        int(path.parent.name.removeprefix("checkpoint-")): path
        for path in folder.glob("checkpoint-*/model.pth")
        if path.parent.name.removeprefix("checkpoint-").isdecimal()
    }
    if not found:
        raise ConfigError(
            f"{folder} is without checkpoint-NUMBER/model.pth; give the folder of VideoReward's "
            f"published files, with {SETTINGS} beside it"
        )
    return found[max(found)]
