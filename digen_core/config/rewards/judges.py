"""Rewards that are judges: vision-language models behind a server."""

from typing import ClassVar, Literal

from pydantic import Field

from digen_core.config.rewards.base import Decoded, Sees
from digen_core.config.rewards.servers import PublicUrl, ServerReward
from digen_core.inputs.shipped import MaybeShipped


class VlmReward(ServerReward):
    """A vision-language model behind an OpenAI-compatible server."""

    takes: Decoded = "images"
    """images: each image, of a video every frame_stride-th frame, in a request of its own; videos:
    frames of a video in one request."""

    frame_stride: int = Field(4, ge=1)
    """Of a video every so many-th frame is judged, from the first one."""

    max_frames: int = Field(8, ge=1, le=1000)
    """Most frames of a video in one request; of more, so many are taken, spread evenly."""

    url: PublicUrl = Field(pattern=r"^https?://[^\s/?#@]+(/[^\s?#]*)?$")
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


class QuestionsReward(VlmReward):
    """Yes-no questions about a sample that a model behind a server answers."""

    sees: ClassVar[Sees] = "samples"

    template: MaybeShipped = Field("digen:judges/question.toml", min_length=1)
    """What is asked, with {question} in it: a file, see docs/rewards.md; a score above 1/2 is the
    answer yes."""

    max_attempts: int = Field(4, ge=1, le=100)
    """Requests about a question before its sample has no score."""


class DpgConfig(QuestionsReward):
    """The questions that come with a prompt, as DPG-Bench has them, answered by such a model."""

    type: Literal["dpg"] = "dpg"


class JudgedKindsConfig(QuestionsReward):
    """Questions made of a prompt's kind, for which VBench and T2I-CompBench have detectors."""

    type: Literal["judged_kinds"] = "judged_kinds"


class PairwiseConfig(VlmReward):
    """Which of two samples of a group is better, as a vision-language model behind a server says.

    The score is the share of its comparisons that a sample wins.
    """

    type: Literal["pairwise"] = "pairwise"

    sees: ClassVar[Sees] = "groups"

    template: MaybeShipped = Field("digen:judges/pairwise.toml", min_length=1)
    """What is asked, and how the answer names the better one: a file, see docs/rewards.md;
    digen:judges/NAME is one that digen ships."""

    takes: Decoded = "images"
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
