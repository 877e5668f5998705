"""Rewards that compare the samples of a group: whether a config's can work."""

from collections.abc import Mapping

from digen_core.config.rewards import RewardConfig, ranked
from digen_core.config.rewards.judges import PairwiseConfig
from digen_core.config.rewards.ranks import RankedConfig
from digen_core.config.rewards.servers import RemoteConfig


def check_relative(rewards: Mapping[str, RewardConfig], sizes: Mapping[str, int]) -> None:
    """Check the rewards that compare the samples of a group.

    Args:
        rewards: of the config.
        sizes: of the groups that are scored, by the key that says so.

    Raises:
        ValueError: one of them cannot work.
    """
    for name, own in ranked(rewards).items():
        _check_ranked(name, own, rewards)
    for name, reward in rewards.items():
        for key, size in sizes.items():
            if isinstance(reward, PairwiseConfig):
                _check_opponents(name, reward, key, size)
            if isinstance(reward, RemoteConfig) and reward.sees == "groups":
                _check_request(name, reward, key, size)


def _check_ranked(name: str, reward: RankedConfig, rewards: Mapping[str, RewardConfig]) -> None:
    if reward.of not in rewards:
        raise ValueError(
            f"rewards.{name}.of is {reward.of!r}, which is no reward of this config; add it, with "
            "weight = 0 if it is to count by its ranks only."
        )
    if isinstance(rewards[reward.of], RankedConfig):
        raise ValueError(
            f"rewards.{name}.of is {reward.of!r}, which ranks scores itself; name the reward whose "
            "scores they are."
        )


def _check_opponents(name: str, reward: PairwiseConfig, key: str, size: int) -> None:
    number = reward.opponents
    if number is None:
        return
    if number >= size:
        raise ValueError(
            f"rewards.{name}.opponents is {number}, but of a group of {size} "
            f"({key}) there are {size - 1}; use fewer, or leave it out for all."
        )
    if number % 2 and size % 2:
        raise ValueError(
            f"rewards.{name}.opponents ({number}) and {key} ({size}) are odd, "
            "so not every sample can have as many; make one of them even."
        )


def _check_request(name: str, reward: RemoteConfig, key: str, size: int) -> None:
    if reward.batch_size < size:
        raise ValueError(
            f"rewards.{name} sees groups, but its batch_size ({reward.batch_size}) is below "
            f"{key} ({size}); a group has to fit into one request."
        )
