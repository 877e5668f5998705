"""What rewards of a config have in common, by what they look at."""

from typing import Annotated, ClassVar, Final, Literal

from pydantic import AfterValidator, Field

from digen_core.strict import Strict

Decoded = Literal["images", "videos"]
Takes = Literal[Decoded, "latents"]
Form = Literal["images", "latents"]
"""What rewards are handed of samples: what was decoded of them, images or videos, or latents."""

Sees = Literal["samples", "groups"]

OF_ASKING: Final = (
    *("url", "token_variable", "pool", "timeout", "max_attempts", "backoff_seconds"),
    *("concurrency", "batch_size", "detector_batch_size", "max_tokens"),
)
"""Keys of rewards that say where and how they are asked, and not what they say: an answer that
``max_tokens`` cuts off is none."""


def _not_a_role(name: str) -> str:
    if name in ("rollout", "trainer", "both", "member", "members"):
        raise ValueError(f"a pool cannot be called {name}, which is a role; use another name")
    return name


PoolName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_-]*$"), AfterValidator(_not_a_role)]
"""Of workers that only score; they declare it as a resource, as the others do their roles."""


class RewardBase(Strict):
    """What every reward has."""

    needs_source: ClassVar[bool] = False  # whether it judges edits of source images only
    sees_source: ClassVar[bool] = False  # whether it may look at source images

    weight: float = Field(1.0, ge=-1e290, le=1e290)
    """Factor in the weighted sum."""


class CalledReward(RewardBase):
    """A reward that is called with samples, which may fail."""

    on_failure: Literal["fail", "neutral", "drop"] = "fail"
    """What follows when no attempt gave a number. fail: the run ends. neutral: the sample counts
    with the mean of its group in this reward. drop: its group is not trained; another prompt's
    takes its place while `rollout.refill` has some left. `reward/NAME/failed` is their share."""

    max_attempts: int = Field(1, ge=1, le=100)
    """Calls before the reward counts as failed."""

    backoff_seconds: float = Field(0.5, ge=0, le=60)
    """Pause before the second attempt, at most; it doubles with every further one, up to 60 s."""

    pool: PoolName | None = None
    """Pool of workers that score it beside the devices that generate; null: the device that
    generated a sample scores it. See docs/rewards.md."""


class ImageReward(CalledReward):
    """A reward that looks at single images."""

    sees: ClassVar[Sees] = "samples"
    takes: ClassVar[Takes] = "images"

    frame_stride: int = Field(4, ge=1)
    """Of a video every so many-th frame is judged, from the first one; the score is the mean."""


class EditReward(ImageReward):
    """A reward that looks at images beside those that they are edits of."""

    needs_source: ClassVar[bool] = True
    sees_source: ClassVar[bool] = True


class VideoReward(CalledReward):
    """A reward that looks at whole videos."""

    sees: ClassVar[Sees] = "samples"
    takes: ClassVar[Takes] = "videos"


class ChoosesInput(CalledReward):
    """A reward that digen does not know: the user says what it takes."""

    sees_source: ClassVar[bool] = True

    takes: Takes = "images"
    """images: [B, 3, H, W], of a video every frame_stride-th frame; videos: [B, F, 3, H, W];
    latents: what these are decoded from, [B, C, h, w], of videos [B, C, f, h, w]."""

    frame_stride: int = Field(4, ge=1)
    """Of a video every so many-th frame is judged, from the first one; the score is the mean.
    For rewards that take images."""
