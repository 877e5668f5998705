"""Rewards: functions of images and prompts, looked up by name in the config's ``rewards`` table."""

from collections.abc import Iterable

from digen_core.rewards.scoring import RewardFn, import_reward
from digen_core.rewards.shapes import shapes

REWARDS: dict[str, RewardFn] = {"shapes": shapes}


def reward_functions(names: Iterable[str]) -> dict[str, RewardFn]:
    """Return the functions of built-in rewards and of the user's own ``module:function``.

    Raises:
        ConfigError: a name is neither.
    """
    return {name: REWARDS.get(name) or import_reward(name) for name in names}
