"""The reward that ranks the scores of another one."""

from typing import ClassVar, Literal

from pydantic import Field

from digen_core.config.rewards.base import RewardBase, Takes


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
