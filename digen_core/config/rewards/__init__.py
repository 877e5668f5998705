"""The rewards of a config: for each its weight, its options, and what its failure means.

A reward is written as a weight, or as a table of options:

    [rewards]
    shapes = 1.0                      # a type of reward, by its name

    [rewards.quality]                 # any name, with a type
    type = "remote"
    url = "http://127.0.0.1:8000/score"

A name with a colon is a function of the user's own, ``module:function``.

What a reward sees (``sees``) is told by its type or its config: samples, each for itself; a whole
group of them, of one prompt; the scores that another reward gave to a group; or the rows of prompts
that samples come with.
"""

from collections.abc import Mapping
from typing import Annotated, Final, Literal, get_args

from pydantic import Field

from digen_core.config.rewards.base import Form, RewardBase
from digen_core.config.rewards.clip import (
    ClipScoreConfig,
    ConsistencyConfig,
    SourceSimilarityConfig,
    SubjectConsistencyConfig,
)
from digen_core.config.rewards.given import GivenConfig
from digen_core.config.rewards.judges import (
    DpgConfig,
    JudgeConfig,
    JudgedKindsConfig,
    PairwiseConfig,
)
from digen_core.config.rewards.own import FunctionConfig
from digen_core.config.rewards.pixels import (
    JpegCompressibilityConfig,
    JpegIncompressibilityConfig,
    MotionConfig,
    TemporalFlickeringConfig,
)
from digen_core.config.rewards.preferences import (
    AestheticConfig,
    HpsConfig,
    ImageRewardConfig,
    PickScoreConfig,
)
from digen_core.config.rewards.ranks import RankedConfig
from digen_core.config.rewards.reward_models import Hps3Config, VideoRewardConfig
from digen_core.config.rewards.servers import RemoteConfig
from digen_core.config.rewards.verifiers import (
    BlipVqaConfig,
    DpgBlipConfig,
    GenevalConfig,
    OcrConfig,
    ShapesConfig,
    ShapesEditConfig,
)

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
    | Hps3Config
    | ImageRewardConfig
    | AestheticConfig
    | GenevalConfig
    | BlipVqaConfig
    | DpgBlipConfig
    | ConsistencyConfig
    | SubjectConsistencyConfig
    | TemporalFlickeringConfig
    | MotionConfig
    | VideoRewardConfig
    | RemoteConfig
    | JudgeConfig
    | DpgConfig
    | JudgedKindsConfig
    | PairwiseConfig
    | FunctionConfig
)
RewardConfig = Annotated[CalledConfig | RankedConfig | GivenConfig, Field(discriminator="type")]

REWARD_TYPES: Final[Mapping[str, type[RewardBase]]] = {
    kind.model_fields["type"].default: kind for kind in get_args(get_args(RewardConfig)[0])
}


def that_see(
    rewards: Mapping[str, RewardConfig], what: Literal["samples", "groups"]
) -> dict[str, CalledConfig]:
    """Return the rewards that are called with samples, each for itself, or with groups of them."""
    return {name: reward for name, reward in called(rewards).items() if reward.sees == what}


def called(rewards: Mapping[str, RewardConfig]) -> dict[str, CalledConfig]:
    """Return the rewards that are called with samples."""
    return {
        name: reward
        for name, reward in rewards.items()
        if not isinstance(reward, RankedConfig | GivenConfig)
    }


def ranked(rewards: Mapping[str, RewardConfig]) -> dict[str, RankedConfig]:
    """Return the rewards that rank the scores of others."""
    return {n: reward for n, reward in rewards.items() if isinstance(reward, RankedConfig)}


def forms_of(rewards: Mapping[str, RewardConfig]) -> frozenset[Form]:
    """Return what the rewards among them that are called are handed of samples."""
    takes = {reward.takes for reward in called(rewards).values()}
    return frozenset("latents" if own == "latents" else "images" for own in takes)


def given(rewards: Mapping[str, RewardConfig]) -> dict[str, GivenConfig]:
    """Return the rewards that the rows of prompts say."""
    return {n: reward for n, reward in rewards.items() if isinstance(reward, GivenConfig)}


def relative(rewards: Mapping[str, RewardConfig]) -> list[str]:
    """Return the names of the rewards whose scores mean something inside a group only."""
    return [name for name, reward in rewards.items() if reward.sees != "samples"]
