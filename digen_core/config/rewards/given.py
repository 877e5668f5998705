"""The reward that the rows of the prompts say, of samples that come with them."""

from typing import ClassVar, Literal

from digen_core.config.rewards.base import RewardBase, Takes


class GivenConfig(RewardBase):
    """What each sample of a group is worth, as the prompt's row says it.

    It is for samples from files (prompts.sample_columns); what is generated it cannot judge.
    """

    type: Literal["given"] = "given"

    sees: ClassVar[Literal["rows"]] = "rows"
    takes: ClassVar[Takes] = "images"
    on_failure: ClassVar[Literal["fail"]] = "fail"  # it has no call that could fail
    pool: ClassVar[None] = None

    columns: tuple[str, ...] = ()
    """Columns of the prompts that hold a number for each sample, in the order of
    `prompts.sample_columns`."""

    values: tuple[float, ...] = ()
    """In their place: the numbers of every row, such as [1, 0] of chosen and rejected images."""
