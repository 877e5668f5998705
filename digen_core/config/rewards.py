"""The rewards of a config: for each its weight, its options, and what its failure means.

A reward is written as a weight, or as a table of options:

    [rewards]
    shapes = 1.0                      # a type of reward, by its name

    [rewards.quality]                 # any name, with a type
    type = "remote"
    url = "http://127.0.0.1:8000/score"

A name with a colon is a function of the user's own, ``module:function``.

What a reward sees (``sees``) is told by its type or its config: samples, each for itself; a whole
group of them, of one prompt; or the scores that another reward gave to a group.
"""

from collections.abc import Mapping
from typing import Annotated, ClassVar, Final, Literal, get_args

from pydantic import AfterValidator, BeforeValidator, Field

from digen_core.config.shipped import MaybeShipped
from digen_core.inputs.addresses import public_address
from digen_core.strict import Duration, PathText, Strict

Takes = Literal["images", "videos"]
Sees = Literal["samples", "groups"]

PICKSCORE: Final = "yuvalkirstain/PickScore_v1"


def _not_a_role(name: str) -> str:
    if name in ("rollout", "trainer", "both", "member", "members"):
        raise ValueError(f"a pool cannot be called {name}, which is a role; use another name")
    return name


def _public(url: object) -> object:
    if not isinstance(url, str):
        return url
    instead = "name the environment variable that holds a token: token_variable"
    return public_address("the url of a reward", url, instead)


PoolName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_-]*$"), AfterValidator(_not_a_role)]
"""Of workers that only score; they declare it as a resource, as the others do their roles."""


class RewardBase(Strict):
    """What every reward has."""

    needs_source: ClassVar[bool] = False  # whether it judges edits of source images only
    sees_source: ClassVar[bool] = False  # whether it may look at source images

    weight: float = 1.0
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


class ShapesConfig(ImageReward):
    """The verifier of the world `shapes`."""

    type: Literal["shapes"] = "shapes"


class ShapesEditConfig(EditReward):
    """The verifier of edits in the world `shapes`."""

    type: Literal["shapes_edit"] = "shapes_edit"


class JpegCompressibilityConfig(ImageReward):
    """Minus the kB of the image as a JPEG."""

    type: Literal["jpeg_compressibility"] = "jpeg_compressibility"


class JpegIncompressibilityConfig(ImageReward):
    """The kB of the image as a JPEG."""

    type: Literal["jpeg_incompressibility"] = "jpeg_incompressibility"


class OcrConfig(ImageReward):
    """How much of the prompt's quoted text can be read in the image."""

    type: Literal["ocr"] = "ocr"

    text_column: str | None = None
    """Metadata column of the text to be read; null: what the prompt quotes. See docs/prompts.md."""

    min_confidence: float = Field(0.5, ge=0, le=1)
    """Lines that the engine is less sure of are taken as unread."""


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


class ConsistencyConfig(VideoReward, ClipConfig):
    """How alike the frames of a video are, as CLIP sees them."""

    type: Literal["consistency"] = "consistency"


class MotionConfig(VideoReward):
    """How much moves in a video, as far as it moves and does not flicker."""

    type: Literal["motion"] = "motion"

    enough: float = Field(0.01, gt=0, le=1)
    """Motion that scores fully, per frame, as a fraction of the frame's shorter side."""


class _ChoosesInput(CalledReward):
    """A reward that digen does not know: the user says what it takes."""

    sees_source: ClassVar[bool] = True

    takes: Takes = "images"
    """images: [B, 3, H, W], of a video every frame_stride-th frame; videos: [B, F, 3, H, W]."""

    frame_stride: int = Field(4, ge=1)
    """Of a video every so many-th frame is judged, from the first one; the score is the mean.
    For rewards that take images."""


class ServerReward(_ChoosesInput):
    """A reward that asks a server over HTTP."""

    url: Annotated[str, BeforeValidator(_public)] = Field(
        pattern=r"^https?://\S+$",
        # By this Prefect's server refuses a form with a password before it keeps it.
        json_schema_extra={"pattern": r"^https?://[^\s/?#@]+([/?#]\S*)?$"},
    )
    """Where batches are posted to; a token goes into `token_variable`, not in here."""

    timeout: Duration = Field(60.0, gt=0)
    """Seconds for a request, from its start to the end of its answer; then it has failed."""

    max_attempts: int = Field(4, ge=1, le=100)
    """Calls before the reward counts as failed."""

    token_variable: str | None = None
    """Environment variable of the workers whose value is sent as a bearer token; null: none is."""


class RemoteConfig(ServerReward):
    """A scorer that answers over HTTP; docs/rewards.md has its protocol."""

    type: Literal["remote"] = "remote"

    sees: Sees = "samples"
    """samples: each for itself; groups: all samples of a prompt in one request, so that the scores
    say how they compare."""

    body: Literal["arrow", "json"] = "arrow"
    """arrow: an IPC stream of uint8 tensors; json: PNG files in base64."""

    batch_size: int = Field(32, ge=1)
    """Most samples in one request; where the reward sees groups, it has to be a whole one."""


class VlmReward(ServerReward):
    """A vision-language model behind an OpenAI-compatible server."""

    takes: Takes = "images"
    """images: each image, of a video every frame_stride-th frame, in a request of its own; videos:
    frames of a video in one request."""

    frame_stride: int = Field(4, ge=1)
    """Of a video every so many-th frame is judged, from the first one."""

    max_frames: int = Field(8, ge=1, le=1000)
    """Most frames of a video in one request; of more, so many are taken, spread evenly."""

    url: Annotated[str, BeforeValidator(_public)] = Field(
        pattern=r"^https?://[^\s/?#@]+(/[^\s?#]*)?$"
    )
    """Base of the server's addresses, such as http://127.0.0.1:8000/v1; a token goes into
    `token_variable`, not in here."""

    model: str = Field(min_length=1)
    """Name under which the server serves the model."""

    concurrency: int = Field(8, ge=1, le=1024)
    """Most requests at the same time, of each worker that scores."""

    max_tokens: int = Field(512, ge=1, le=1_000_000)
    """Most tokens of an answer; one to a question that is answered with a token has one."""

    seed: int = Field(0, ge=0, lt=2**63)
    """Sent with each request, beside the temperature 0."""

    image_format: Literal["png", "jpeg"] = "png"
    """How images are sent: png is exact, jpeg (quality 95) smaller."""


class JudgeConfig(VlmReward):
    """A vision-language model behind an OpenAI-compatible server; docs/rewards.md has how."""

    type: Literal["judge"] = "judge"

    sees: ClassVar[Sees] = "samples"

    template: MaybeShipped = Field("digen:judges/alignment.toml", min_length=1)
    """What is asked, and how the answer becomes a score: a file, see docs/rewards.md;
    digen:judges/NAME is one that digen ships."""

    max_attempts: int = Field(4, ge=1, le=100)
    """Requests about a sample before it has no score."""


class PairwiseConfig(VlmReward):
    """Which of two samples of a group is better, as a vision-language model behind a server says.

    The score is the share of its comparisons that a sample wins.
    """

    type: Literal["pairwise"] = "pairwise"

    sees: ClassVar[Sees] = "groups"

    template: MaybeShipped = Field("digen:judges/pairwise.toml", min_length=1)
    """What is asked, and how the answer names the better one: a file, see docs/rewards.md;
    digen:judges/NAME is one that digen ships."""

    takes: Takes = "images"
    """images: a request has the two of a pair; videos: frames of both, as a video model needs."""

    opponents: int | None = Field(None, ge=1)
    """Samples of its group that each sample is compared with, drawn from the seed; null: all."""

    orders: Literal["one", "both"] = "one"
    """one: each pair is shown once, and each sample first as often as second, or once more; both:
    each pair is shown in both orders and counts their mean: a tie if the winners differ."""

    counts: Literal["wins", "probabilities"] = "wins"
    """What a comparison counts. wins: 1 for the better one, 1/2 each in a tie; probabilities: how
    probable the model finds each to be the better one, where the template asks for that."""

    max_attempts: int = Field(4, ge=1, le=100)
    """Requests about a pair before it has no answer."""

    seed: int = Field(0, ge=0, lt=2**63)
    """Sent with each request, beside the temperature 0. By it and the prompt pairs are drawn, and
    which of two samples is shown first."""


class FunctionConfig(_ChoosesInput):
    """A function or class of the user's own."""

    type: Literal["function"] = "function"

    sees: Sees = "samples"
    """samples: each for itself; groups: it is called with all samples of a prompt at once, so that
    the scores say how they compare."""

    function: str
    """`module:function`, or `module:Class`, of which each worker makes one object."""

    options: dict[str, str | int | float | bool] = Field(default_factory=dict)
    """Arguments of the class, besides `device`."""


class RankedConfig(RewardBase):
    """How a sample's score of another reward compares with those of its group.

    It is the share of the others that it is better than, and half of those that it ties with.
    """

    type: Literal["ranked"] = "ranked"

    sees: ClassVar[Literal["scores"]] = "scores"
    takes: ClassVar[Takes] = "images"
    on_failure: ClassVar[Literal["fail"]] = "fail"  # it has no call of its own that could fail
    pool: ClassVar[None] = None

    of: str
    """Name of that reward in the config; with `weight = 0` it counts by its ranks only."""

    margin: float = Field(0.0, ge=0)
    """Scores that differ by no more than this tie."""


CalledConfig = (
    ShapesConfig
    | ShapesEditConfig
    | JpegCompressibilityConfig
    | JpegIncompressibilityConfig
    | OcrConfig
    | ClipScoreConfig
    | SourceSimilarityConfig
    | PickScoreConfig
    | HpsConfig
    | ImageRewardConfig
    | AestheticConfig
    | GenevalConfig
    | ConsistencyConfig
    | MotionConfig
    | RemoteConfig
    | JudgeConfig
    | PairwiseConfig
    | FunctionConfig
)
RewardConfig = Annotated[CalledConfig | RankedConfig, Field(discriminator="type")]

REWARD_TYPES: Final[Mapping[str, type[RewardBase]]] = {
    kind.model_fields["type"].default: kind for kind in get_args(get_args(RewardConfig)[0])
}


def that_see(
    rewards: Mapping[str, RewardConfig], what: Literal["samples", "groups"]
) -> dict[str, CalledConfig]:
    """Return the rewards that are called with samples, each for itself, or with groups of them."""
    return {
        name: reward
        for name, reward in rewards.items()
        if not isinstance(reward, RankedConfig) and reward.sees == what
    }


def called(rewards: Mapping[str, RewardConfig]) -> dict[str, CalledConfig]:
    """Return the rewards that are called with samples."""
    return {n: reward for n, reward in rewards.items() if not isinstance(reward, RankedConfig)}


def ranked(rewards: Mapping[str, RewardConfig]) -> dict[str, RankedConfig]:
    """Return the rewards that rank the scores of others."""
    return {n: reward for n, reward in rewards.items() if isinstance(reward, RankedConfig)}


def relative(rewards: Mapping[str, RewardConfig]) -> list[str]:
    """Return the names of the rewards whose scores mean something inside a group only."""
    return [name for name, reward in rewards.items() if reward.sees != "samples"]
