"""The ``rewards`` table as it is written: names, types that are left out, dotted keys, mistakes.

Among the mistakes are those of rewards that compare the samples of a group.
"""

import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any, Final

from digen_core.config.checkpoint import EVALUATION, CheckpointConfig
from digen_core.config.rewards import (
    REWARD_TYPES,
    PairwiseConfig,
    RankedConfig,
    RemoteConfig,
    RewardBase,
    RewardConfig,
    ranked,
    relative,
    that_see,
)

NULL: Final = "null"
"""What stands for None in a table of TOML, which has no null."""

_NAME: Final = re.compile(r"[A-Za-z0-9_-]+")
_TOTALS: Final = ("reward/mean", "evaluation/reward")


def with_types(rewards: object) -> object:
    """Write out what a ``rewards`` table leaves to be understood; leave the rest to pydantic.

    A number is a weight. Without a type, a name with a colon is a function of that name, and any
    other name is the type.

    Raises:
        ValueError: a name is neither ``module:function`` nor made of letters, digits, _ and -.
    """
    if not isinstance(rewards, Mapping):
        return rewards
    return {name: _with_type(str(name), value) for name, value in rewards.items()}


def _with_type(name: str, value: object) -> object:
    if ":" not in name and not _NAME.fullmatch(name):
        raise ValueError(
            f"the reward name {name!r} is neither module:function nor made of letters, digits, "
            "_ and - only; rename it."
        )
    if isinstance(value, RewardBase):
        return value
    table = dict(value) if isinstance(value, Mapping) else {"weight": value}
    table.setdefault("type", "function" if ":" in name else name)
    if table["type"] == "function" and ":" in name:
        table.setdefault("function", name)
    return table


def split_key(key: str) -> tuple[str, str]:
    """Split what follows ``rewards.`` in a dotted key into a reward's name and its option.

    Module names have dots, functions have none: "my.judges:beauty.weight" is the weight of
    "my.judges:beauty". Without an option, the second string is empty.
    """
    module, colon, rest = key.rpartition(":")
    name, _, option = rest.partition(".")
    return module + colon + name, option


def unknown_reward(name: str) -> str:
    """Say that there is no such type of reward, and what there is."""
    near = get_close_matches(name, REWARD_TYPES, 1)
    hint = f"did you mean {near[0]}?" if near else f"its type is one of {', '.join(REWARD_TYPES)}."
    return f"unknown reward {name!r}; {hint} Your own is named module:function"


def unknown_option(parts: Sequence[str], kind: str) -> str:
    """Say what a reward of a type has in the place of a key that it does not have.

    Args:
        parts: of the key: "rewards", the reward's name, the option.
        kind: the reward's type.
    """
    known = list(REWARD_TYPES[kind].model_fields)
    near = get_close_matches(parts[2], known, 1)
    return f"did you mean rewards.{parts[1]}.{near[0]}?" if near else f"it has {', '.join(known)}"


def kind_of_option(key: str) -> Any:
    """Return the annotation of a reward's option, or float: that of its weight."""
    _, option = split_key(key.removeprefix("rewards."))
    fields = [kind.model_fields.get(option) for kind in REWARD_TYPES.values()]
    return next((field.annotation for field in fields if field), float)


def key_in_reward(rewards: Any, key: str, value: Any) -> list[str]:
    """Return the path to a reward's option; one that was a weight so far becomes a table for it."""
    name, option = split_key(key)
    if not isinstance(rewards, dict):
        return ["rewards", name]
    is_table = isinstance(rewards.get(name), dict)
    if option and name in rewards and not is_table:
        rewards[name] = {"weight": rewards[name]}
    if is_table and not option and not isinstance(value, dict):
        option = "weight"
    return ["rewards", name, *filter(None, option.split("."))]


def without_type(location: Sequence[int | str]) -> tuple[list[str], str | None]:
    """Return the parts of a key, and the type of the reward it is in, which pydantic puts there."""
    parts = [str(part) for part in location]
    if parts[:1] == ["rewards"] and len(parts) > 2:
        return parts[:2] + parts[3:], parts[2]
    return parts, None


def check_relative(
    rewards: Mapping[str, RewardConfig], group_size: int, checkpoints: CheckpointConfig
) -> None:
    """Check the rewards that compare the samples of a group.

    Raises:
        ValueError: one of them cannot work.
    """
    for name, own in ranked(rewards).items():
        _check_ranked(name, own, rewards)
    for name, reward in rewards.items():
        if isinstance(reward, PairwiseConfig):
            _check_opponents(name, reward, group_size)
        if isinstance(reward, RemoteConfig) and reward.sees == "groups":
            _check_request(name, reward, group_size)
    if checkpoints.keep_best:
        _check_best(checkpoints.best_by, rewards)


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


def _check_opponents(name: str, reward: PairwiseConfig, group_size: int) -> None:
    number = reward.opponents
    if number is None:
        return
    if number >= group_size:
        raise ValueError(
            f"rewards.{name}.opponents is {number}, but of a group of {group_size} "
            f"(rollout.group_size) there are {group_size - 1}; use fewer, or leave it out for all."
        )
    if number % 2 and group_size % 2:
        raise ValueError(
            f"rewards.{name}.opponents ({number}) and rollout.group_size ({group_size}) are odd, "
            "so not every sample can have as many; make one of them even."
        )


def _check_request(name: str, reward: RemoteConfig, group_size: int) -> None:
    if reward.batch_size < group_size:
        raise ValueError(
            f"rewards.{name} sees groups, but its batch_size ({reward.batch_size}) is below "
            f"rollout.group_size ({group_size}); a group has to fit into one request."
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
            f"checkpoints.best_by is {metric!r}, but rewards that compare the samples of a group "
            f"({', '.join(names)}) do not tell one version from another; use another metric, or "
            "keep_best 0."
        )
