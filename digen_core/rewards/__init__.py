"""Rewards: functions of images and prompts, looked up by name in the config's ``rewards`` table."""

from digen_core.rewards.scoring import RewardFn
from digen_core.rewards.shapes import shapes

REWARDS: dict[str, RewardFn] = {"shapes": shapes}
