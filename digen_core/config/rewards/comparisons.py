"""Rewards that compare the samples of a group: whether a config's can work."""

from collections.abc import Mapping
from typing import Final

from digen_core.config.checkpoint import EVALUATION, CheckpointConfig
from digen_core.config.rewards import RewardConfig, ranked, relative, that_see
from digen_core.config.rewards.judges import PairwiseConfig
from digen_core.config.rewards.ranks import RankedConfig
from digen_core.config.rewards.servers import RemoteConfig

_TOTALS: Final = ("reward/mean", "evaluation/reward")


def check_relative(
    rewards: Mapping[str, RewardConfig], sizes: Mapping[str, int], checkpoints: CheckpointConfig
) -> None:
    """Check the rewards that compare the samples of a group.

    Args:
        rewards: of the config.
        sizes: of the groups that are scored, by the key that says so.
        checkpoints: of the config.

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
    if checkpoints.keep_best:
        _check_best(checkpoints.best_by, rewards)
        _check_evaluated(checkpoints.best_by, rewards)


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


def _check_evaluated(metric: str, rewards: Mapping[str, RewardConfig]) -> None:
    """Refuse to look for the best version by what no evaluation tells."""
    name = metric.removeprefix(EVALUATION).partition("/")[0]
    if metric.startswith(EVALUATION) and metric != "evaluation/reward" and name not in rewards:
        raise ValueError(
            f"checkpoints.best_by is {metric!r}, but this config has no reward {name!r}; use "
            f"evaluation/reward, or evaluation/NAME/score with one of {', '.join(rewards)}."
        )


def _check_best(metric: str, rewards: Mapping[str, RewardConfig]) -> None:
    """Refuse to look for the best version by what is the same of all versions, and not kept."""
    names, others = relative(rewards), that_see(rewards, "samples")
    scores = [f"reward/{name}/score" for name in names]
    asks_nothing = tuple(f"{EVALUATION}{name}/" for name in names) if others else EVALUATION
    weighs = any(reward.weight for reward in others.values())
    is_one = metric in scores or metric.startswith(asks_nothing)
    if names and (is_one or (not weighs and metric in _TOTALS)):
        raise ValueError(
            f"checkpoints.best_by is {metric!r}, but rewards that tell only the samples of a group "
            f"apart ({', '.join(names)}) do not tell one version from another; use another "
            "metric, or keep_best 0."
        )
